// Batch normalisation and skips in a small convolutional network: micro-batches, pipelines and recompute change neither running statistics
// nor gradients more than they must.
#include "model/classifier/batch_norm.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "mesh/flat_gradients.h"
#include "model/classifier/cnn.h"
#include "model/objective.h"
#include "parallel/pipeline/pipeline.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kSamples = 12;

mesh::Batch pictures() {
  mesh::Batch batch;
  const at::Tensor pixels = at::empty({kSamples, 1, 6, 5}, at::kDouble);
  for (int64_t i = 0; i < pixels.numel(); ++i)
    pixels.mutable_data_ptr<double>()[i] = base::Random(2).normal(static_cast<uint64_t>(i)) + 0.3;
  batch.ids = at::arange(kSamples);
  batch.fields["pixels"] = {pixels};
  batch.fields["labels"] = {at::arange(kSamples).remainder(3)};
  return batch;
}

struct Step {
  at::Tensor gradients;
  model::Buffers buffers;
  double loss = 0;
};

// One step over these micro-batches, on one rank or along a pipeline of the world's ranks with so many blocks each.
Step step_over(const std::vector<int64_t>& sizes, comm::World* world, std::vector<int64_t> stage_blocks, bool recompute, bool skip) {
  const auto model = model::make_cnn({.layers = 4, .skip = skip});
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  model::initialize_parameters(*model, flat, base::Random(5));
  const model::FlatWeights weights(layout, flat);
  Step step{.gradients = at::zeros({layout.elements}, at::kDouble), .buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble))};
  std::vector<int32_t> uses = model->uses();
  mesh::FlatGradients sink(layout, step.gradients, uses);
  sink.begin(static_cast<int64_t>(sizes.size()), nullptr);
  const mesh::Batch whole = pictures();
  const mesh::Axes alone;
  const auto objective = model::make_classification();
  const model::PassOptions options{.recompute = std::vector<bool>(model->blocks().size(), true)};
  std::vector<mesh::Batch> batches;
  int64_t first = 0;
  for (const int64_t size : sizes) batches.push_back(mesh::slice(whole, first, first + size)), first += size;
  std::vector<Pass> passes;
  for (const mesh::Batch& batch : batches)
    passes.push_back({.model = *model,
                      .at = weights,
                      .buffers = step.buffers,
                      .axes = alone,
                      .batch = batch,
                      .objective = *objective,
                      .into = &sink,
                      .weight = 1.0 / kSamples,
                      .options = options,
                      .recompute = recompute});
  if (!world) {
    for (const Pass& pass : passes) step.loss += execute(pass).sum.item<double>();
    sink.finish();
  } else {
    Plan plan;
    plan.mesh.axes = {{"pp", world->size()}};
    plan.stage_blocks = std::move(stage_blocks);
    for (int stage = 0; stage < static_cast<int>(plan.stage_blocks.size()); ++stage) plan.rank_of_stage.push_back(stage);
    Pipeline pipeline(*model, plan, single_pipeline(world->everyone()),
                      [&](int m) { return make_schedule({.ranks = world->size(), .micro_batches = m}); });
    for (const model::Losses& losses : pipeline.run(passes)) step.loss += losses.sum.item<double>();
    // Blocks of other ranks contribute nothing here: those gradients stay 0, and the sums over ranks are whole.
    world->everyone().all_reduce(step.gradients, comm::Reduce::sum, {comm::Purpose::gradient, "check"}).wait_host();
  }
  model::commit_batch_norms(step.buffers, false, [&](const at::Tensor& sums) {
    if (world) world->everyone().all_reduce(sums, comm::Reduce::sum, {comm::Purpose::state, "check"}).wait_host();
  });
  return step;
}

double apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(BatchNorm, RunningStatisticsAreThoseOfTheFirstLayersWholeBatch) {
  // Only the first layer's inputs are the same however the batch is cut: later ones are normalised by micro-batch.
  const Step cut = step_over({5, 4, 3}, nullptr, {}, false, false), whole = step_over({12}, nullptr, {}, false, false);
  for (const char* name : {"layers.0.norm.running_mean", "layers.0.norm.running_var"})
    EXPECT_LT(apart(cut.buffers.at(name), whole.buffers.at(name)), 1e-12) << name;
  EXPECT_GT(apart(whole.buffers.at("layers.0.norm.running_mean"), at::zeros({8}, at::kDouble)), 1e-3);
}

TEST(BatchNorm, RecomputationChangesNothing) {
  const Step kept = step_over({5, 4, 3}, nullptr, {}, false, false), again = step_over({5, 4, 3}, nullptr, {}, true, false);
  EXPECT_EQ(apart(kept.gradients, again.gradients), 0);
  for (const mesh::NamedTensor& one : model::running_buffers(kept.buffers))
    EXPECT_EQ(apart(one.tensor, again.buffers.at(one.name)), 0) << one.name;
}

TEST(BatchNorm, AndASkipAcrossStagesAreRightInAPipeline) {
  for (const bool skip : {false, true}) {
    const Step alone = step_over({5, 4, 3}, nullptr, {}, false, skip);
    harness::on_ranks(3, [&](comm::World& world) {
      const Step piped = step_over({5, 4, 3}, &world, {1, 2, 2}, true, skip);
      EXPECT_LT(apart(piped.gradients, alone.gradients), 1e-12);
      for (const mesh::NamedTensor& one : model::running_buffers(alone.buffers))
        EXPECT_LT(apart(one.tensor, piped.buffers.at(one.name)), 1e-12) << one.name;
      EXPECT_NEAR(piped.loss, world.rank() == 2 ? alone.loss : 0, 1e-10);
    });
  }
}

}  // namespace
}  // namespace cairn::parallel
