// Chunked cross entropy: the same losses and gradients, except for rounding, in less memory.
#include "train/loss_chunks.h"

#include <ATen/core/IListRef.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "parallel/plan.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/build/make_plan.h"
#include "train/refusal.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

base::Recipe chunked_recipe(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"train.steps=4", "optim.kind=sgd", "optim.learning_rate=0.1", "optim.warmup_steps=1", "eval.fraction=0"});
  return small_decoder("llama", sets);
}

struct ChunkedRun {
  std::vector<double> losses, norms;
  at::Tensor weights;
};

// Measures how many logits existed at a time.
class Watched final : public model::Objective {
 public:
  Watched(const model::Objective& of, int64_t& rows_most) : of_(of), rows_most_(rows_most) {}
  Separates separates() const override { return of_.separates(); }
  bool reads_chunks() const override { return of_.reads_chunks(); }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double weight,
                         const mesh::Axes& axes) const override {
    const model::Value& logits = outputs.value("logits");
    if (!logits.chunked_logits) {
      rows_most_ = std::max(rows_most_, logits.tensor.numel() / logits.tensor.size(-1));
    } else {
      for (int64_t part = 0; part < logits.chunked_logits->chunks(); ++part)
        rows_most_ = std::max(rows_most_, logits.chunked_logits->compute(part).size(0));
    }
    return of_.evaluate(outputs, batch, gradients, weight, axes);
  }

 private:
  const model::Objective& of_;
  int64_t& rows_most_;
};

TEST(LossChunks, SplitThePass) {
  for (const auto& [chunks, rows] : {std::pair<int64_t, int64_t>{1, 133}, {4, 34}, {6, 23}, {1000, 1}}) {
    int64_t rows_most = 0;
    harness::on_ranks(1, [&, chunks = chunks](comm::World& world) {
      const auto job = build(world, chunked_recipe({fmt::format("train.loss_chunks={}", chunks)}), {}, {});
      const std::unique_ptr<model::Objective> plain = std::move(job->engine.objective);
      job->engine.objective = std::make_unique<Watched>(*plain, rows_most);
      take_step(*job);
    });
    EXPECT_EQ(rows_most, rows) << "of 7 texts of 19 tokens, in " << chunks;
  }
}

ChunkedRun take_steps(int ranks, std::vector<std::string> sets, int64_t chunks) {
  sets.push_back(fmt::format("train.loss_chunks={}", chunks));
  ChunkedRun taken;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const auto job = build(world, chunked_recipe(sets), {}, {});
    for (int i = 0; i < 4; ++i) {
      const StepOutput output = take_step(*job).output;
      ++job->progress.steps_done;
      const at::Tensor loss = output.loss_sum.to(at::kDouble).clone();  // along pp the last rank has it
      world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "test"}).wait_host();
      if (world.rank() > 0) continue;
      taken.losses.push_back(loss.item<double>());
      taken.norms.push_back(output.gradient_norm.item<double>());
    }
    std::vector<at::Tensor> all;
    for (const parallel::ParameterSlice& piece : job->engine.store->pieces()) all.push_back(piece.value.reshape({-1}).clone());
    if (world.rank() == 0) taken.weights = at::cat(all);
  });
  return taken;
}

TEST(LossChunks, GiveTheResultsOfOneChunk) {
  struct {
    std::vector<std::string> sets;
    int ranks = 1;
    double apart = 1e-5, weights_apart = 1e-6;
  } const cases[] = {{{}},
                     {{"model.tied=false"}},
                     {{"train.micro_batch=4"}},
                     {{"recompute.mode=\"full\""}},
                     {{"recompute.mode=\"selective\"", "model.dropout=0.1"}},
                     {{"model.kind=\"gpt2\"", "model.kv_heads=4"}},
                     {{"model.train=[\"role:head\", \"role:norm\"]", "model.tied=false"}},
                     {{"model.train=[\"role:norm\"]"}},
                     {{"data.packing=\"documents\""}},
                     {{"memory.zero=3", "mesh.dp=2"}, 2},
                     {{"memory.zero=2", "mesh.dp=2", "train.micro_batch=1"}, 2},
                     {{"mesh.cp=2"}, 2},
                     {{"mesh.tp=2"}, 2},
                     {{"mesh.tp=2", "model.residual=\"ladder\""}, 2},
                     {{"mesh.tp=3", "model.tied=false", "model.heads=3", "model.kv_heads=3", "model.embed=24"}, 3},
                     {{"mesh.pp=2", "train.micro_batch=2"}, 2},
                     {{"mesh.pp=2", "train.micro_batch=2", "pipeline.schedule=\"zb_h1\"", "model.tied=false"}, 2},
                     {{"memory.zero=3", "mesh.dp=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}, 2},
                     {{"memory.zero=2", "mesh.dp=2", "train.micro_batch=1", "memory.accumulate_unsharded=false", "model.tied=false"}, 2},
                     {{"train.global_batch=3", "mesh.dp=2", "train.micro_batch=1"}, 2},

                     {{"model.residual=\"ladder\""}},
                     {{"train.precision=\"bf16\""}, 1, 2e-2, 1e-3},
                     {{"train.gradients=\"bf16\"", "train.precision=\"bf16\""}, 1, 1e-3, 1e-3},
                     {{"train.gradients=\"bf16\"", "train.precision=\"bf16\"", "model.tied=false"}, 1, 1e-3, 1e-3}};
  for (const auto& c : cases) {
    const std::string what = c.sets.empty() ? "plain" : c.sets[0];
    const ChunkedRun whole = take_steps(c.ranks, c.sets, 1);
    for (const int64_t chunks : {2, 7, 1000}) {  // chunks of unequal length, and one for each token
      const ChunkedRun parts = take_steps(c.ranks, c.sets, chunks);
      for (size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(parts.losses[i] / whole.losses[i], 1, c.apart) << what << ", " << chunks;
        EXPECT_NEAR(parts.norms[i] / whole.norms[i], 1, 10 * c.apart) << what << ", " << chunks;
      }
      EXPECT_LT((parts.weights - whole.weights).abs().max().item<double>(), c.weights_apart) << what << ", " << chunks;
    }
  }
}

TEST(LossChunks, MayBeChosenBySize) {
  const auto model = model::make_decoder({.vocab = 100000, .embed = 16, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 8, .mlp = 16});
  const auto chosen = [&](const std::vector<std::string>& sets, bool on_gpu, int ranks = 1) {
    base::Recipe recipe = chunked_recipe({"train.loss_chunks=0"});
    for (const std::string& set : sets) recipe.set(set);
    const Settings settings = read_settings(recipe);
    parallel::Plan plan = make_plan(settings, ranks);
    plan.micro_batch = 8;
    return loss_chunks_of(settings, *model, plan, /*length=*/4096, on_gpu);
  };
  EXPECT_EQ(chosen({}, true), 25) << "13.1 GB in chunks of 0.5 GiB";
  EXPECT_EQ(chosen({"train.precision=\"bf16\""}, true), 13);
  EXPECT_EQ(chosen({"mesh.cp=2"}, true, 2), 13);
  EXPECT_EQ(chosen({"train.loss_chunks=3"}, true), 3);
  EXPECT_EQ(chosen({}, false), 1) << "a CPU";
  EXPECT_EQ(chosen({"mesh.tp=2"}, true, 2), 13) << "each rank has a part of every row";
  EXPECT_EQ(chosen({"recompute.mode=\"stage\""}, true), 1) << "one chunk where chunks are not allowed";
}

TEST(LossChunks, AreRefusedWhereTheyDoNotHelp) {
  const auto refused = [](std::vector<std::string> sets, const std::string& why) {
    sets.emplace_back("train.loss_chunks=4");
    EXPECT_THAT(refusal_of(chunked_recipe(sets)), testing::HasSubstr(why));
  };
  refused({"train.method=\"one_byte\""}, "makes its passes in its own way");
  refused({"recompute.mode=\"stage\""}, "use recompute.mode = full");
}

}  // namespace
}  // namespace cairn::train
