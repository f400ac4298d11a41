// Layouts from the command line, as processes: --mesh, schedules from a file, pictures, resuming, `cairn verify`.
#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

std::vector<std::string> and_more(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(LayoutCommand, ProcessesInAnyLayoutGiveTheLossesOfOne) {
  const harness::ScratchFolder scratch;
  const std::vector<std::string> heads{"--set", "model.heads=4", "--set", "model.kv_heads=2", "--set", "train.steps=4"};
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    const Outcome outcome = cairn(scratch, and_more(and_more(tiny({"train", "--out", name}), heads), more));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return losses_in(scratch / name);
  };
  const std::vector<double> one = run("one", {});
  ASSERT_EQ(one.size(), 4U);
  ASSERT_EQ(cairn(scratch, {"schedule", "zb_h1", "--ranks", "2", "--micro-batches", "3", "--out-csv", "mine.csv"}).code, 0);
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"pp_tp", {"--mesh", "pp=2,tp=2"}},
           {"zero", {"--mesh", "dp=3", "--set", "memory.zero=3"}},
           {"file", {"--mesh", "pp=2", "--set", "pipeline.csv=mine.csv", "--set", "pipeline.micro_batches=3"}}}) {
    const std::vector<double> many = run(name, more);
    ASSERT_EQ(many.size(), 4U) << name;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(many[i], one[i], 1e-5) << name << " step " << i + 1;
  }
  for (const char* picture : {"schedule.svg", "schedule-planned.svg"})
    EXPECT_NE(scratch.text_of("pp_tp/" + std::string(picture)).find("</svg>"), std::string::npos) << picture;
  // A run goes on in another layout.
  std::filesystem::rename(scratch / "pp_tp", scratch / "elsewhere");
  const Outcome more = cairn(scratch, {"train", "--resume", "elsewhere", "elsewhere/recipe.toml", "--mesh", "dp=2", "--set", "mesh.pp=1",
                                       "--set", "mesh.tp=1", "--set", "train.steps=5"});
  EXPECT_EQ(more.code, 0) << more.output;
  EXPECT_EQ(losses_in(scratch / "elsewhere").size(), 5U);
}

TEST(LayoutCommand, AMeshThatIsNoneIsRefused) {
  const harness::ScratchFolder scratch;
  const auto refused = [&](const std::vector<std::string>& more, const std::string& words) {
    const Outcome outcome = cairn(scratch, and_more({"train"}, more));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
  };
  refused({"--mesh", "qq=2"}, "mesh axis \"qq\" is unknown");
  refused({"--mesh", "island=(dp=2|dp=1)"}, "every part of a run has the same mesh");
  refused({"--mesh", "dp=2", "--nproc", "3"}, "mesh.dp = 2 needs 2 ranks and there are 3");
  refused({"--mesh", "pp=2", "--set", "pipeline.csv=nowhere.csv"}, "nowhere.csv");
}

TEST(VerifyCommand, SaysThatLayoutsAgreeOrWhichTensorDoesNot) {
  const harness::ScratchFolder scratch;
  const Outcome same = cairn(scratch, {"verify", "--mesh", "dp=2,tp=2", "--steps", "2", "--set-first", "memory.zero=3"});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_NE(same.output.find("the same 2 steps"), std::string::npos) << same.output;
  std::string book;
  for (int i = 0; i < 500; ++i) book += "The hare number " + std::to_string(i * 37) + " ran home.\n";
  scratch.file("book.txt", book);
  const Outcome own = cairn(scratch, {"verify", "--data", "book.txt", "--mesh", "dp=2", "--steps", "1"});
  EXPECT_EQ(own.code, 0) << own.output;
  EXPECT_NE(own.output.substr(0, own.output.find(" and ")), same.output.substr(0, same.output.find(" and "))) << "the losses of other data";
  EXPECT_NE(cairn(scratch, {"verify", "--data", "none.txt", "--mesh", "dp=2"}).output.find("data.path = none.txt: no such file"),
            std::string::npos);
  const Outcome planted = cairn(scratch, {"verify", "--mesh", "tp=2", "--steps", "1", "--plant", "model.norm.weight"});
  EXPECT_EQ(planted.code, 3) << planted.output;
  EXPECT_NE(planted.output.find("differ first in step 1: the gradient of model.norm.weight"), std::string::npos) << planted.output;
  const Outcome wrong = cairn(scratch, {"verify", "--mesh", "tp=2", "--plant", "model.layers.0.mlp.up_proj.weight"});
  EXPECT_EQ(wrong.code, 2) << wrong.output;
  EXPECT_NE(wrong.output.find("is not summed over copies"), std::string::npos) << wrong.output;
}

}  // namespace
}  // namespace cairn::cli
