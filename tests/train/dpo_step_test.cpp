#include "train/steps/dpo_step.h"

#include <cmath>
#include <fstream>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "data/corpus.h"
#include "harness/scratch_folder.h"
#include "model/trainable.h"
#include "parallel/by_autograd.h"
#include "train/tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

constexpr const char* kChoices = R"({"prompt": "Hi", "chosen": "Hello there", "rejected": "Go"}
{"prompt": [{"role": "user", "content": "1+1"}], "chosen": [{"role": "assistant", "content": "2"}], "rejected": [{"role": "assistant", "content": "three"}]}
{"prompt": "Name a fruit", "chosen": "Plum", "rejected": "Stone, a hard one"}
{"prompt": "?", "chosen": "!", "rejected": "..."}
{"prompt": "Good night", "chosen": "Sleep well", "rejected": "No"}
)";
constexpr int64_t kPairs = 5;
constexpr double kBeta = 0.4, kSmoothing = 0.1;

Sets pair_sets(const std::string& base, const std::string& path) {
  return {"model.from=" + base, "data.path=" + path,       "data.kind=preference",         "train.global_batch=5",
          "train.dpo.beta=0.4", "optim.learning_rate=0.5", "train.dpo.label_smoothing=0.1"};
}
const Sets kLora{"model.lora.rank=2", R"(model.lora.targets=["q_proj", "up_proj"])"};

mesh::Batch all_pairs(const std::string& path) {
  base::Log log = base::Log::quiet();
  data::DataOptions options;
  options.path = path;
  options.kind = "preference";
  options.tokenizer = data::TokenizerKind::bytes;
  options.chat_template = "plain";
  options.length = 40;
  mesh::Batch batch;
  data::open_corpus(options, {}, log).samples->fill(std::vector<int64_t>{0, 1, 2, 3, 4}, batch);
  return batch;
}

// The log-probabilities of one side's answers by the plain form of the model, differentiable.
at::Tensor log_p(const model::Model& model, const model::Weights& weights, const mesh::Batch& pairs, const std::string& side) {
  model::Buffers buffers = model.make_buffers(at::TensorOptions().dtype(at::kDouble));
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  model::Values values;
  values.put("tokens", pairs.field(side + "_tokens"));
  for (const auto& block : model.blocks()) block->plain(values, call);
  const at::Tensor targets = pairs.field(side + "_targets");
  return (values.get("logits").log_softmax(-1).gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2) * targets.ge(0)).sum(1);
}

struct ByHand {
  std::vector<double> losses, accuracies, margins;
  at::Tensor flat;
};

// Gradient descent on the equation itself, in double, from `flat`, which is also the reference.
ByHand descend(const model::Model& model, at::Tensor flat, const mesh::Batch& pairs, int64_t steps, double rate) {
  const mesh::FlatLayout layout = model.layout();
  const std::vector<bool> trained = model::trainable(model, {});
  const model::LeafWeights reference(layout, flat);
  ByHand found;
  for (int64_t step = 0; step < steps; ++step) {
    at::AutoGradMode record(true);
    const model::LeafWeights live(layout, flat);
    const auto reward = [&](const std::string& side) {
      return kBeta * (log_p(model, live, pairs, side) - log_p(model, reference, pairs, side).detach());
    };
    const at::Tensor margin = reward("chosen") - reward("rejected");
    const at::Tensor loss = -((1 - kSmoothing) * margin.sigmoid().log() + kSmoothing * (-margin).sigmoid().log()).mean();
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, live.leaves);
    at::NoGradGuard no_grad;
    found.losses.push_back(loss.item<double>());
    found.margins.push_back(margin.mean().item<double>());
    found.accuracies.push_back(margin.gt(0).to(at::kDouble).mean().item<double>());
    flat = flat.clone();
    const mesh::NamedTensors views = layout.views(flat);
    for (size_t i = 0; i < views.size(); ++i)
      if (trained[i]) views[i].tensor.sub_(gradients[i], rate);
  }
  found.flat = flat;
  return found;
}

TEST(Dpo, TakesTheStepsOfPlainAutogradOnOneRankAndTwoWithAdaptersOrWithout) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  const mesh::Batch pairs = all_pairs(path);
  for (const bool adapters : {false, true}) {
    const model::AdapterShape lora{.rank = adapters ? 2 : 0, .alpha = 16, .targets = {"q_proj", "up_proj"}};
    const Sets sets = pair_sets(base, path) + (adapters ? kLora : Sets{});
    const std::string name = adapters ? "lora" : "full";
    const double rate = adapters ? 20 : 0.5;  // adapters begin slowly
    tune(scratch / (name + "-still"), sets + Sets{"optim.learning_rate=0"});
    const SavedModel start = saved_model(scratch / (name + "-still"), 1, lora);
    const ByHand expected = descend(*start.model, start.flat.to(at::kDouble), pairs, 4, rate);
    EXPECT_NEAR(expected.losses[0], std::log(2), 1e-12);
    EXPECT_LT(expected.losses[3], 0.95 * expected.losses[0]);
    for (const int ranks : {1, 2}) {
      for (const int micro : {0, 2}) {
        const auto out = scratch / fmt::format("{}-{}-{}", name, ranks, micro);
        tune(out, sets + Sets{"train.steps=4", fmt::format("optim.learning_rate={}", rate), fmt::format("train.micro_batch={}", micro)},
             {.ranks = ranks});
        const std::vector<double> losses = numbers_of(out, "loss"), margins = numbers_of(out, "reward_margin");
        ASSERT_EQ(losses.size(), 4u);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_NEAR(losses[i], expected.losses[i], 2e-6) << name << " on " << ranks << ", step " << i + 1;
          EXPECT_NEAR(margins[i], expected.margins[i], 2e-5) << name << " on " << ranks << ", step " << i + 1;
          EXPECT_NEAR(numbers_of(out, "reward_chosen")[i] - numbers_of(out, "reward_rejected")[i], margins[i], 1e-9);
        }
        EXPECT_NEAR(numbers_of(out, "reward_accuracy")[3], expected.accuracies[3], 1e-12);
        const at::Tensor found = saved_model(out, 4, lora).flat.to(at::kDouble), began = start.flat.to(at::kDouble);
        EXPECT_LT((found - expected.flat).norm().item<double>(), 1e-4 * (expected.flat - began).norm().item<double>());
      }
    }
  }
}

TEST(Dpo, ContinuesBitForBitAndMeasuresWhatIsHeldOut) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  for (const bool adapters : {false, true}) {
    for (const int ranks : {1, 2}) {
      const Sets sets = pair_sets(base, path) + (adapters ? kLora : Sets{}) +
                        Sets{"optim.kind=adamw", "optim.learning_rate=0.01", "train.global_batch=3", "train.steps=6",
                             "snapshot.every=3", "eval.fraction=0.4",        "eval.every=3"};
      const auto whole = scratch / fmt::format("whole-{}-{}", adapters, ranks),
                 parts = scratch / fmt::format("parts-{}-{}", adapters, ranks);
      tune(whole, sets, {.ranks = ranks});
      std::filesystem::copy(whole, parts, std::filesystem::copy_options::recursive);
      std::filesystem::remove_all(snapshot::step_folder(parts, 6));
      tune(parts, sets, {.ranks = ranks, .resume = true});
      for (const char* name : {"loss", "reward_chosen", "reward_rejected", "eval_loss", "eval_reward_margin", "eval_reward_accuracy"}) {
        EXPECT_EQ(numbers_of(parts, name), numbers_of(whole, name)) << name;
        EXPECT_EQ(numbers_of(whole, name).size(), std::string(name).starts_with("eval") ? 2u : 6u) << name;
      }
      EXPECT_LT(numbers_of(whole, "loss").back(), std::log(2));
    }
  }
}

// Along pp, cp and tp, and with ZeRO, where the reference model is sharded as well.
TEST(Dpo, GivesTheNumbersOfOneRankInEveryLayout) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  struct Layout {
    std::string name;
    int ranks;
    Sets sets;
  };
  for (const bool adapters : {false, true}) {
    const model::AdapterShape lora{.rank = adapters ? 2 : 0, .alpha = 16, .targets = {"q_proj", "up_proj"}};
    const Sets sets = pair_sets(base, path) + (adapters ? kLora : Sets{}) +
                      Sets{"train.steps=3", "train.global_batch=3", "eval.fraction=0.4", "eval.every=3",
                           adapters ? "optim.learning_rate=20" : "train.seed=1"};
    const auto one = scratch / (adapters ? "one-lora" : "one");
    tune(one, sets);
    const at::Tensor expected = saved_model(one, 3, lora).flat;
    for (const Layout& c : std::vector<Layout>{{"pp", 2, {"mesh.pp=2"}},
                                               {"zbv", 2, {"mesh.pp=2", "pipeline.schedule=zbv", "recompute.mode=stage"}},
                                               {"cp", 2, {"mesh.cp=2"}},
                                               {"cp_more_ranks", 3, {"mesh.cp=3", "context.form=gather", "context.balanced=false"}},
                                               {"zero3", 2, {"memory.zero=3"}},
                                               {"zero3_uneven", 4, {"memory.zero=3", "train.micro_batch=1", "memory.prefetch_blocks=0"}},
                                               {"pp_tp", 4, {"mesh.pp=2", "mesh.tp=2"}},
                                               {"pp_zero3", 4, {"mesh.pp=2", "memory.zero=3"}},
                                               {"cp_tp_zero3", 4, {"mesh.cp=2", "mesh.tp=2", "memory.zero=3"}}}) {
      if (adapters && !c.name.starts_with("zero3")) continue;  // what is not trained is read from the live weights
      const auto out = scratch / ((adapters ? "lora-" : "") + c.name);
      tune(out, sets + c.sets, {.ranks = c.ranks});
      for (const char* name : {"loss", "reward_chosen", "reward_rejected", "eval_loss", "eval_reward_margin"}) {
        const std::vector<double> found = numbers_of(out, name), alone = numbers_of(one, name);
        ASSERT_EQ(found.size(), alone.size()) << c.name << ' ' << name;
        for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], alone[i], 2e-5) << c.name << ' ' << name << ", row " << i;
      }
      const at::Tensor found = saved_model(out, 3, lora).flat;
      EXPECT_LT((found - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>()) << c.name;
    }
  }
}

// The checksum of the reference model is that of the whole model, however it is sharded.
TEST(Dpo, ContinuesInAnotherLayout) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  const Sets sets = pair_sets(base, path) + Sets{"optim.kind=adamw", "optim.learning_rate=0.01", "train.steps=4", "snapshot.every=2"};
  const auto whole = scratch / "whole", parts = scratch / "parts";
  tune(whole, sets);
  tune(parts, sets + Sets{"mesh.pp=2", "mesh.tp=2"}, {.ranks = 4});
  std::filesystem::remove_all(snapshot::step_folder(parts, 4));
  tune(parts, sets + Sets{"memory.zero=3", "mesh.tp=2"}, {.ranks = 4, .resume = true});
  ASSERT_EQ(numbers_of(parts, "loss").size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(numbers_of(parts, "loss")[i], numbers_of(whole, "loss")[i], 1e-5) << i;
}

// The reference model is rounded in the same way as the model.
TEST(Dpo, BeginsAtTheLogarithmOfTwoInLowerPrecisionToo) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  for (const char* kept : {"fp32", "bf16"}) {
    tune(scratch / kept, pair_sets(base, path) + Sets{"train.precision=bf16", fmt::format("train.parameters={}", kept), "train.steps=12"});
    const std::vector<double> losses = numbers_of(scratch / kept, "loss");
    EXPECT_NEAR(losses[0], std::log(2), 1e-12) << kept;
    EXPECT_LT(losses[11], 0.95 * losses[0]) << kept;
  }
}

TEST(Dpo, RefusesToGoOnWithAnotherReference) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("pairs.jsonl", kChoices).string();
  const std::filesystem::path copy = scratch / "copy";
  std::filesystem::create_directory(copy);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    std::filesystem::copy(std::filesystem::path(base) / name, copy / name);
  const Sets sets = pair_sets(copy.string(), path);
  tune(scratch / "run", sets);
  std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);  // the last value becomes another one
  file.write("\x11\x3f", 2);
  file.close();
  const harness::Run ended = tune(scratch / "run", sets + Sets{"train.steps=2"}, {.resume = true, .expect_errors = true});
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::bad_input);
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("its reference model is not the one that this recipe starts from: " + copy.string()));
}

}  // namespace
}  // namespace cairn::train
