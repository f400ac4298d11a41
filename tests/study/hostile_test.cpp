#include "study/hostile.h"

#include <set>

#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

TEST(Hostile, IsNamedOnceAndInPlenty) {
  std::set<std::string> names;
  for (const HostileCase& one : hostile_cases()) EXPECT_TRUE(names.insert(one.reader + ": " + one.name).second) << one.name;
  EXPECT_GE(names.size(), 200u);
}

// The judge itself: a program that answers otherwise is found out.
TEST(Hostile, OutcomesAreJudged) {
  const harness::ScratchFolder scratch;
  const auto judged = [&](const std::string& script, std::vector<std::string> said) {
    const HostileCase one{"x", "y", {"-c", script}, [](const HostileFolder&) {}, std::move(said)};
    return run_hostile(one, hostile_process("sh"), scratch.path(), scratch.path()).trouble;
  };
  EXPECT_EQ(judged("echo 'cairn: a.json: empty' >&2; exit 2", {"a.json"}), "");
  EXPECT_EQ(judged("echo 'cairn: a.json: empty' >&2; exit 2", {"b.json"}), "does not say \"b.json\"");
  EXPECT_EQ(judged("echo 'cairn: a.json' >&2; exit 3", {}), "exit code 3");
  EXPECT_EQ(judged("exit 2", {}), "no line that begins with \"cairn:\"");
  EXPECT_EQ(judged("echo 'cairn: std::bad_alloc' >&2; exit 2", {}), "speaks of \"std::\"");
  EXPECT_EQ(judged("kill -11 $$", {}), "exit code 139");
}

}  // namespace
}  // namespace cairn::study
