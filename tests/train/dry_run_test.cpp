#include "train/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

DryRun estimated(const std::vector<std::string>& sets, const DeviceMemory& memory = {}) {
  return dry_run(small_decoder("llama", sets), {}, 1, memory);
}

TEST(DryRunMemory, FitsByTheMemoryOfAllRanksThatShareIt) {
  const DryRun one = estimated({}, {.bytes = int64_t{200} << 20, .ranks = 1});
  EXPECT_EQ(one.misfit, "");
  const DryRun two = estimated({}, {.bytes = int64_t{200} << 20, .ranks = 2, .processes = 2});
  EXPECT_THAT(two.misfit, HasSubstr("and this machine has 200 MiB: "));
  EXPECT_THAT(two.text, HasSubstr("this does not fit: "));
  EXPECT_EQ(estimated({}, {.bytes = int64_t{200} << 20, .ranks = 2, .processes = 1}).misfit, "") << "threads share the program";
  EXPECT_EQ(estimated({}, {.bytes = 0, .ranks = 100, .processes = 100}).misfit, "") << "the memory is not known";
}

TEST(DryRunSnapshots, AreParametersAndMomentsAndOneMoreThanIsKept) {
  const DryRun three = estimated({"train.steps=100", "snapshot.every=10", "snapshot.keep=3"});
  EXPECT_EQ(three.snapshots_kept, 4);
  EXPECT_EQ(three.snapshot_bytes, 3 * estimated({"optim.kind=sgd", "optim.momentum=0"}).snapshot_bytes);
  EXPECT_EQ(estimated({"train.steps=15", "snapshot.every=10", "snapshot.keep=3"}).snapshots_kept, 2);
  EXPECT_EQ(estimated({"train.steps=100", "snapshot.every=0"}).snapshots_kept, 1);
  EXPECT_EQ(estimated({"train.steps=100", "snapshot.every=0", "snapshot.last=false"}).snapshots_kept, 0);
}

TEST(DryRunSnapshots, WarnIfNotAllFitAndAreRefusedIfNoneDoes) {
  const DryRun run{.text = {}, .misfit = {}, .snapshot_bytes = 1000, .snapshots_kept = 4};
  EXPECT_EQ(check_disk(run, "runs/a", 4000), "");
  EXPECT_EQ(check_disk(run, "runs/a", -1), "") << "the system does not say";
  EXPECT_EQ(check_disk(run, "runs/a", 3999),
            "runs/a: 4 snapshots at once (snapshot.keep and the one being written) need about 3.91 KiB and 3.91 KiB are free there");
  EXPECT_THROW(check_disk(run, "runs/a", 999), Error);
  EXPECT_EQ(check_disk({.text = {}, .misfit = {}, .snapshot_bytes = 1000, .snapshots_kept = 0}, "runs/a", 1), "");
}

TEST(WarmUp, EndsBeforeTheMiddleOfTheRunByDefault) {
  const auto warm_up = [](const std::string& recipe) {
    base::Recipe parsed = base::Recipe::parse(recipe, "r.toml");
    const int64_t steps = read_settings(parsed).optim.warmup_steps;
    EXPECT_THAT(parsed.resolved_toml(), HasSubstr("warmup_steps = " + std::to_string(steps) + "  # "));
    return steps;
  };
  EXPECT_EQ(warm_up("train.steps = 60"), 24);
  EXPECT_EQ(warm_up("train.steps = 1"), 0);
  EXPECT_EQ(warm_up("train.steps = 300"), 120);
  EXPECT_EQ(warm_up("train.steps = 100000"), 120);
  EXPECT_EQ(warm_up("train.steps = 60\noptim.warmup_steps = 50"), 50);
}

}  // namespace
}  // namespace cairn::train
