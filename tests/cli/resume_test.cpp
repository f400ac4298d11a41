// Resuming a run: what is said about it, what is kept of its recipe, and what is refused.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launch/resumed_recipe.h"
#include "data/options.h"
#include "model/options.h"
#include "program.h"
#include "snapshot/run_lock.h"
#include "train/settings.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// A run of 4 steps with two snapshots, of the text book.txt in the folder `home`.
class Resumed : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(scratch / "home");
    std::string text;
    for (int i = 0; i < 400; ++i) text += "Sentence number " + std::to_string(i * 7919 % 1000) + " of the book. ";
    scratch.file("home/book.txt", text);
    scratch.file("home/mine.toml", "[optim]\nlearning_rate = 0.002\nwarmup_steps = 1\n\n[data]\npath = \"book.txt\"\n");
    const Outcome first = in("home", tiny({"train", "mine.toml", "--set", "train.steps=4", "--set", "snapshot.every=2"}));
    ASSERT_EQ(first.code, 0) << first.output;
  }
  // Runs the program in a folder of the scratch folder.
  Outcome in(const std::string& folder, const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv{"env", "-C", (scratch / folder).string(), "CAIRN_CACHE=" + (scratch / "cache").string(),
                                  std::string(CAIRN_BINARY_DIR) + "/cairn"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const study::ProcessResult ended = study::run_program(argv, (scratch / "output.txt").string());
    return {ended.exit_code, scratch.text_of("output.txt")};
  }
  harness::ScratchFolder scratch;
};

// A new key of text must say which it is: base::path() in its schema, or a line here.
TEST(ResumedRecipe, KnowsOfEveryKeyWhetherItIsAPath) {
  const std::set<std::string> words{"model.train",
                                    "model.ladder_layers",
                                    "model.lora.targets",
                                    "model.attention.dense_layers",
                                    "model.softmax_layers",
                                    "context.form",
                                    "data.text_field",
                                    "data.template_date",
                                    "train.fp8_layers",
                                    "pipeline.split",
                                    "recompute.modules",
                                    "plan.place.\"PATTERN\"",
                                    "island.meet",
                                    "island.listen",
                                    "log.prompt",
                                    "snapshot.host_bytes",
                                    "data.ignore",
                                    "data.label",
                                    "model.adapter.targets",
                                    "model.hyperbolic.graph",
                                    "memory.device_budget",
                                    "memory.host_budget",
                                    "memory.disk_budget"};
  std::set<std::string> paths, others;
  for (const base::Section& section : train::recipe_sections())
    for (const base::Entry& entry : section.entries) {
      const bool text =
          std::holds_alternative<std::string>(entry.default_value) || std::holds_alternative<std::vector<std::string>>(entry.default_value);
      const std::string key = section.name + "." + entry.key;
      if (entry.check.kind == base::Check::Kind::path) paths.insert(key);
      if (text && entry.check.kind == base::Check::Kind::any) others.insert(key);
    }
  EXPECT_EQ(others, words);
  EXPECT_THAT(
      paths, testing::ElementsAre("data.path", "data.sources", "data.subset", "data.template", "data.test_file", "data.tokenizer_file",
                                  "memory.disk_path", "model.adapter.from", "model.attention.pattern_file", "model.from", "model.lora.from",
                                  "model.parscale.from", "pipeline.csv", "retrieval.teacher", "sampler.clusters"));
}

TEST(ResumedRecipe, MovesRelativePathsAlone) {
  base::Recipe::File saved{.text =
                               "[data]\nsources = [\"a.txt\", \"/b.txt\"]\ntemplate = \"own.jinja\"\ntext_field = \"a/b\"\n"
                               "[model]\nfrom = \"../base\"\n",
                           .name = "recipe.toml"};
  const base::Recipe moved = read_saved_recipe(saved, "/home/run");
  const data::DataOptions data = base::Recipe(moved).read(data::data_schema());
  EXPECT_THAT(data.sources, testing::ElementsAre("/home/run/a.txt", "/b.txt"));
  EXPECT_EQ(data.chat_template, "/home/run/own.jinja");
  EXPECT_EQ(data.text_field, "a/b");
  EXPECT_EQ(base::Recipe(moved).read(model::model_schema()).from, "/home/base");
}

TEST_F(Resumed, NamesTheRunTheStepAndEveryChangedKey) {
  const Outcome more = in("home", {"train", "--resume", "auto", "--set", "train.steps=6", "--set", "optim.learning_rate=0.001"});
  ASSERT_EQ(more.code, 0) << more.output;
  EXPECT_THAT(more.output, HasSubstr("resuming runs/mine from step 4 on 1 rank (cpu)\n"));
  EXPECT_THAT(more.output, HasSubstr("changed since runs/mine was started: optim.learning_rate 0.002 -> 0.001 (--set)\n"));
  EXPECT_THAT(more.output, HasSubstr("changed since runs/mine was started: train.steps 4 -> 6 (--set)\n"));
  EXPECT_EQ(losses_in(scratch / "home/runs/mine").size(), 6u);
}

TEST_F(Resumed, KeepsWhereEveryValueOfTheRecipeCameFrom) {
  const std::string before = scratch.text_of("home/runs/mine/recipe.toml");
  EXPECT_THAT(before, HasSubstr("learning_rate = 0.002  # mine.toml:2\n"));
  ASSERT_EQ(in("home", {"train", "--resume", "auto", "--set", "train.steps=6"}).code, 0);
  std::string expected = before;
  const std::string steps = "\nsteps = 4  # --set\n";
  ASSERT_NE(expected.find(steps), std::string::npos) << before;
  expected[expected.find(steps) + 9] = '6';
  EXPECT_EQ(scratch.text_of("home/runs/mine/recipe.toml"), expected);
}

TEST_F(Resumed, WorksFromAnotherFolder) {
  const Outcome more = in(".", {"train", "--resume", "home/runs/mine", "--set", "train.steps=6"});
  ASSERT_EQ(more.code, 0) << more.output;
  EXPECT_EQ(losses_in(scratch / "home/runs/mine").size(), 6u);
  EXPECT_THAT(more.output, Not(HasSubstr("data.path")));
  const Outcome again = in("home", {"train", "--resume", "runs/mine", "--set", "train.steps=7"});
  EXPECT_EQ(again.code, 0) << again.output;
}

TEST_F(Resumed, RefusesAnotherShapeOfTheModelByItsKey) {
  const Outcome outcome = in("home", {"train", "--resume", "auto", "--set", "train.steps=6", "--set", "model.layers=2"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output,
              HasSubstr("model.layers = 2 (--set): runs/mine was trained with 1, and its weights do not fit another model"));
}

TEST_F(Resumed, SaysThatAllStepsAreDone) {
  const std::string metrics = scratch.text_of("home/runs/mine/metrics.jsonl");
  const Outcome outcome = in("home", {"train", "--resume", "auto"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "runs/mine is already at step 4; raise train.steps to train on, as in --set train.steps=8\n");
  EXPECT_EQ(scratch.text_of("home/runs/mine/metrics.jsonl"), metrics);
}

TEST_F(Resumed, RefusesFewerStepsThanAreDone) {
  const Outcome outcome = in("home", {"train", "--resume", "auto", "--set", "train.steps=3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("train.steps = 3: runs/mine is already at step 4: raise train.steps"));
}

TEST_F(Resumed, ReportsADamagedSnapshotOnce) {
  scratch.file("home/runs/mine/snapshots/step-00000004/model.safetensors", "damaged");
  const Outcome outcome = in("home", {"train", "--resume", "auto", "--nproc", "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string said = "snapshot of step 4 is damaged";
  const size_t at = outcome.output.find(said);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(said, at + 1), std::string::npos) << outcome.output;
}

TEST(ResumedIslands, RefuseAnotherNumberOfIslands) {
  const harness::ScratchFolder scratch;
  const Outcome two = cairn(scratch, tiny({"train", "--out", "run", "--islands", "2", "--transport", "local", "--sync", "diloco", "--set",
                                           "sync.island.every=1", "--set", "train.steps=2"}));
  ASSERT_EQ(two.code, 0) << two.output;
  const std::string metrics = scratch.text_of("run/metrics.jsonl");
  const Outcome three =
      cairn(scratch, {"train", "--resume", "run", "--transport", "local", "--islands", "3", "--nproc", "3", "--set", "train.steps=4"});
  EXPECT_EQ(three.code, 2) << three.output;
  EXPECT_THAT(three.output, HasSubstr("mesh.island = 3: run was trained with 2 islands that step separately"));
  EXPECT_EQ(scratch.text_of("run/metrics.jsonl"), metrics);
}

TEST(ResumedIslands, AreRefusedWhileAnIslandStillTrains) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, tiny({"train", "--out", "run", "--islands", "2", "--transport", "local", "--sync", "diloco", "--set",
                                 "sync.island.every=1", "--set", "train.steps=2"}))
                .code,
            0);
  const snapshot::RunLock island(scratch / "run/island-1");  // as a rank on another machine holds it
  const Outcome outcome = cairn(scratch, {"train", "--resume", "run", "--transport", "local", "--set", "train.steps=4"});
  EXPECT_NE(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("run/island-1 is in use by process "));
}

}  // namespace
}  // namespace cairn::cli
