// Training on given rollouts (data.kind = rollouts): the loss at the start, layouts, slices, and what is refused.
#include "train/steps/grpo_step.h"

#include <fstream>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "train/build.h"
#include "train/refusal.h"
#include "train/take_step.h"
#include "train/tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

struct RolloutLine {
  int64_t prompt, answer;
  double advantage;
};
const std::vector<RolloutLine> kRolloutLines{{3, 5, 0.9}, {3, 9, -0.5}, {6, 2, 0.3}, {1, 14, -0.7}};

// Tokens are bytes. `given`: with log-probabilities of other models, which are made up.
std::string rollout_lines(bool given) {
  std::string text;
  for (size_t i = 0; i < kRolloutLines.size(); ++i) {
    const RolloutLine& one = kRolloutLines[i];
    std::vector<int64_t> tokens;
    std::vector<double> old, reference;
    for (int64_t j = 0; j < one.prompt + one.answer; ++j) tokens.push_back(97 + (7 * j + 3 * static_cast<int64_t>(i)) % 26);
    for (int64_t j = 0; j < one.answer; ++j) old.push_back(-5.5 - 0.05 * static_cast<double>(j)), reference.push_back(-5.4);
    text += fmt::format(R"({{"tokens": [{}], "prompt": {}, "advantage": {})", fmt::join(tokens, ", "), one.prompt, one.advantage);
    if (given) text += fmt::format(R"(, "log_probs": [{}], "reference_log_probs": [{}])", fmt::join(old, ", "), fmt::join(reference, ", "));
    text += "}\n";
  }
  return text;
}

class RolloutFiles {
 public:
  RolloutFiles() {
    std::ofstream(folder_.path() / "bare.jsonl") << rollout_lines(false);
    std::ofstream(folder_.path() / "given.jsonl") << rollout_lines(true);
  }
  Sets sets(const std::string& name, const Sets& more = {}) const {
    return Sets{"data.kind=rollouts",    "data.path=" + (folder_.path() / (name + ".jsonl")).string(),
                "data.tokenizer=bytes",  "data.length=18",
                "train.global_batch=4",  "model.layers=2",
                "model.embed=16",        "model.heads=2",
                "model.kv_heads=2",      "model.mlp=24",
                "optim.learning_rate=2", "train.steps=3"} +
           more;
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  harness::ScratchFolder folder_;
};

struct GrpoRun {
  std::vector<double> losses;
  at::Tensor weights;  // of the first rank
};

GrpoRun grpo_steps(int ranks, const Sets& sets) {
  GrpoRun taken;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const auto job = build(world, tuning_recipe(sets), {}, {});
    for (int i = 0; i < 3; ++i) {
      const TakenStep step = take_step(*job);
      ++job->progress.steps_done;
      const at::Tensor loss = step.output.loss_sum.to(at::kDouble).clone();
      job->engine.step_group->all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "test"}).wait_host();
      if (world.rank() == 0) taken.losses.push_back(loss.item<double>() / static_cast<double>(step.loss_denominator));
    }
    std::vector<at::Tensor> all;
    for (const parallel::ParameterSlice& piece : job->engine.store->pieces()) all.push_back(piece.value.reshape({-1}).clone());
    if (world.rank() == 0) taken.weights = at::cat(all);
  });
  return taken;
}

// Where the policy is the one that sampled, every ratio is 1 and the loss is the mean of -A in one of three ways.
TEST(GrpoStep, BeginsAtTheMeanAdvantage) {
  const RolloutFiles files;
  double by_answer = 0, by_token = 0, tokens = 0;
  for (const RolloutLine& one : kRolloutLines) {
    by_answer -= one.advantage / 4;
    by_token -= one.advantage * static_cast<double>(one.answer);
    tokens += static_cast<double>(one.answer);
  }
  const auto first = [&](const std::string& type) {
    return grpo_steps(1, files.sets("bare", {"train.grpo.loss_type=" + type, "train.micro_batch=3"})).losses[0];
  };
  EXPECT_NEAR(first("grpo"), by_answer, 1e-6);
  EXPECT_NEAR(first("bnpo"), by_token / tokens, 1e-6);
  EXPECT_NEAR(first("dr_grpo"), by_token / (4 * 18), 1e-6);
}

TEST(GrpoStep, GivesTheNumbersOfOneRankInEveryLayoutAndInSlices) {
  const RolloutFiles files;
  for (const char* type : {"grpo", "bnpo", "dr_grpo"}) {
    const Sets sets = files.sets("given", {std::string("train.grpo.loss_type=") + type, "train.grpo.beta=0.04", "train.grpo.temperature=0.9"});
    const GrpoRun one = grpo_steps(1, sets);
    EXPECT_NE(one.losses[0], one.losses[2]);
    const Sets slices{"recompute.mode=stream", "recompute.slice=5", "recompute.head_slice=6"};
    struct {
      std::string name;
      int ranks;
      Sets sets;
      bool all_parameters = false;  // the first rank holds all of them
    } const layouts[] = {{"micro", 1, {"train.micro_batch=1"}, true},
                         {"slices", 1, slices, true},
                         {"dp", 2, {"mesh.dp=2"}, true},
                         {"zero3", 3, {"mesh.dp=3", "memory.zero=3", "train.micro_batch=1"}},
                         {"tp", 2, Sets{"mesh.tp=2"} + slices},
                         {"pp", 2, Sets{"mesh.pp=2"} + slices},
                         {"cp", 2, {"mesh.cp=2"}, true},
                         {"cp_slices", 2, Sets{"mesh.cp=2"} + slices, true}};
    for (const auto& layout : layouts) {
      const GrpoRun many = grpo_steps(layout.ranks, sets + layout.sets);
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 2e-6) << type << ' ' << layout.name << ", step " << i;
      if (layout.all_parameters) {
        EXPECT_LT((many.weights - one.weights).abs().max().item<double>(), 2e-6) << type << ' ' << layout.name;
      }
    }
  }
}

TEST(GrpoStep, MeasuresClippingAndDistance) {
  const RolloutFiles files;
  const harness::ScratchFolder scratch;
  tune(scratch / "run", files.sets("given", {"train.steps=2", "eval.fraction=0.25", "eval.every=1", "train.global_batch=3"}));
  for (const char* name : {"clip_fraction", "approximate_kl", "eval_clip_fraction", "eval_loss"}) {
    const std::vector<double> found = numbers_of(scratch / "run", name);
    ASSERT_EQ(found.size(), 2u) << name;
  }
  const double clipped = numbers_of(scratch / "run", "clip_fraction")[0];
  EXPECT_GE(clipped, 0);
  EXPECT_LE(clipped, 1);
}

TEST(GrpoStep, RefusesWhatItCannotTrain) {
  const RolloutFiles files;
  const auto refused = [&](const std::string& name, const Sets& more, const std::string& why) {
    EXPECT_THAT(refusal_of(tuning_recipe(files.sets(name, more))), HasSubstr(why)) << name;
  };
  refused("bare", {"train.grpo.beta=0.1"}, "has no \"reference_log_probs\"");
  refused("bare", {"train.method=one_byte"}, "answers with advantages are trained by gradients");
  refused("bare", {"data.weights=[1]"}, "data.weights");
  refused("missing", {}, "missing.jsonl");
  refused("bare", {"train.precision=bf16", "train.fp8=all"}, "data.kind = rollouts");
  EXPECT_THAT(refusal_of(tuning_recipe({"data.kind=rollouts", "data.path=" + (files.folder() / "bare.jsonl").string()})),
              HasSubstr("Set model.from to the policy, or data.tokenizer_file"));
  EXPECT_THAT(refusal_of(tuning_recipe({"data.kind=rollouts", "data.tokenizer=bytes"})), HasSubstr("\"tokens\", \"prompt\" and \"advantage\""));
  std::ofstream(files.folder() / "text.txt") << "no rollouts\n";
  EXPECT_THAT(refusal_of(tuning_recipe({"data.kind=rollouts", "data.tokenizer=bytes", "data.path=" + (files.folder() / "text.txt").string()})),
              HasSubstr("reads JSON lines"));
}

}  // namespace
}  // namespace cairn::train
