// The passes of a step plan against one process: the same gradients, whatever the ranks and the degrees.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/pass.h"
#include "parallel/step_plan/unit_batch.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kVocab = 19;

// Sequences of these lengths, one after the other, as data.packing = sequences gives them. Ids are places.
mesh::Batch sequences_of(const std::vector<int64_t>& lengths, const std::vector<int64_t>& places) {
  std::vector<int64_t> tokens, targets;
  for (const int64_t place : places) {
    const base::Random random = base::Random(5).for_index(static_cast<uint64_t>(place));
    for (int64_t i = 0; i < lengths[static_cast<size_t>(place)]; ++i) {
      tokens.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(i), kVocab)));
      targets.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(i + 1), kVocab)));
    }
  }
  mesh::Batch batch;
  const auto tensor = [](const std::vector<int64_t>& values) {
    at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), t.data_ptr<int64_t>());
    return t;
  };
  batch.ids = tensor(places);
  batch.fields["tokens"] = {tensor(tokens), mesh::Field::Shape::ragged};
  batch.fields["targets"] = {tensor(targets), mesh::Field::Shape::ragged};
  return batch;
}

model::DecoderShape shape() {
  return {.vocab = kVocab, .embed = 12, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 14, .length = 64, .tied = true};
}

struct Outcome {
  at::Tensor gradients;
  double loss = 0;
};

// This rank's passes of the plan, in double; gradients and losses are its own part.
Outcome run(comm::World* world, const StepPlan& plan, int rank, const std::vector<int64_t>& lengths) {
  const auto model = model::make_decoder(shape(), {});
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  model::initialize_parameters(*model, flat, base::Random(3));
  flat.mul_(5);
  model::Buffers buffers = model->make_buffers(flat.options());
  const model::FlatWeights weights(layout, flat);
  const auto objective = model::make_next_token();
  mesh::FlatGradients sink(layout, at::zeros_like(flat), model->uses());
  const std::vector<int64_t> passes = passes_of(plan, rank);
  const std::vector<mesh::Batch> batches = unit_batches(plan, rank, sequences_of(lengths, places_of(plan, rank)));
  sink.begin(static_cast<int64_t>(std::count_if(passes.begin(), passes.end(), [](int64_t u) { return u != kNoUnit; })), nullptr);
  Outcome outcome;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i] == kNoUnit) continue;
    mesh::Axes axes;
    const std::vector<int>& ranks = plan.units[static_cast<size_t>(passes[i])].ranks;
    if (ranks.size() > 1) axes.put("cp", world->group(ranks));
    const model::Losses losses = execute({.model = *model,
                                          .at = weights,
                                          .buffers = buffers,
                                          .axes = axes,
                                          .batch = batches[i],
                                          .objective = *objective,
                                          .into = &sink,
                                          .weight = 1.0 / 100});
    outcome.loss += losses.sum.item<double>();
  }
  sink.finish();
  outcome.gradients = sink.flat();
  return outcome;
}

// All sequences one by one on one rank.
Outcome alone(const std::vector<int64_t>& lengths) {
  StepPlan plan{.step = 1, .ranks = 1, .micro_batches = 0, .units = {}};
  for (size_t place = 0; place < lengths.size(); ++place)
    plan.units.push_back({.ranks = {0}, .sequences = {{static_cast<int64_t>(place), lengths[place]}}});
  return run(nullptr, plan, 0, lengths);
}

void expect_exact(const StepPlan& plan, const std::vector<int64_t>& lengths) {
  check(plan, static_cast<int64_t>(lengths.size()));
  const Outcome expected = alone(lengths);
  harness::on_ranks(plan.ranks, [&](comm::World& world) {
    const Outcome own = run(&world, plan, world.rank(), lengths);
    const at::Tensor sum = own.gradients.clone(), loss = at::full({1}, own.loss, at::kDouble);
    world.everyone().all_reduce(sum, comm::Reduce::sum, {comm::Purpose::gradient, "sum"}).wait();
    world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::state, "loss"}).wait();
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-10 * std::abs(expected.loss));
    EXPECT_LE((sum - expected.gradients).abs().max().item<double>(), 1e-11 * expected.gradients.abs().max().item<double>());
  });
}

TEST(StepPlanPasses, GiveTheGradientsOfOneProcessAtEveryDegree) {
  for (int degree = 1; degree <= 8; ++degree) {
    StepPlan plan{.step = 1, .ranks = degree, .micro_batches = 0, .units = {}};
    std::vector<int> all(static_cast<size_t>(degree));
    std::iota(all.begin(), all.end(), 0);
    plan.units = {{.ranks = {degree - 1}, .sequences = {{1, 5}, {2, 7}, {3, 1}}},
                  {.ranks = all, .sequences = {{0, 37}}},
                  {.ranks = {0}, .sequences = {{4, 11}}}};
    expect_exact(plan, {37, 5, 7, 1, 11});
  }
}

TEST(StepPlanPasses, UnitsThatShareRanksDoNotWaitInACircle) {
  const StepPlan plan{.step = 1,
                      .ranks = 8,
                      .micro_batches = 0,
                      .units = {{.ranks = {0, 1, 2, 3, 4}, .sequences = {{0, 41}}},
                                {.ranks = {5, 6, 7}, .sequences = {{1, 23}, {2, 9}}},
                                {.ranks = {4, 5}, .sequences = {{3, 14}}},
                                {.ranks = {7, 2, 0}, .sequences = {{4, 30}}},
                                {.ranks = {6}, .sequences = {{5, 3}, {6, 3}}}}};
  expect_exact(plan, {41, 23, 9, 14, 30, 3, 3});
}

TEST(StepPlanPasses, MicroBatchesWithEmptyPasses) {
  const StepPlan plan{.step = 1,
                      .ranks = 3,
                      .micro_batches = 3,
                      .units = {{.ranks = {0, 1, 2}, .sequences = {{0, 20}}, .micro_batch = 0},
                                {.ranks = {0}, .sequences = {{1, 6}}, .micro_batch = 1},
                                {.ranks = {0, 1}, .sequences = {{2, 12}}, .micro_batch = 2},
                                {.ranks = {2}, .sequences = {{3, 4}, {4, 5}}, .micro_batch = 2}}};
  expect_exact(plan, {20, 6, 12, 4, 5});
}

TEST(UnitBatch, KeepsSequencesApart) {
  const StepPlan plan{.step = 1, .ranks = 1, .micro_batches = 0, .units = {{.ranks = {0}, .sequences = {{1, 2}, {0, 3}}}}};
  const mesh::Batch batch = unit_batches(plan, 0, sequences_of({3, 2}, {1, 0}))[0];
  EXPECT_TRUE(at::equal(batch.field("positions"), at::tensor({0, 1, 0, 1, 2}, at::kLong).view({1, 5})));
  EXPECT_TRUE(at::equal(batch.field("documents"), at::tensor({0, 0, 1, 1, 1}, at::kLong).view({1, 5})));
  constexpr int64_t second = int64_t{1} << 24;
  EXPECT_TRUE(at::equal(batch.field("token_keys"), at::tensor({second, second + 1, int64_t{0}, int64_t{1}, int64_t{2}}, at::kLong).view({1, 5})));
  EXPECT_EQ(batch.samples(), 1);
}

}  // namespace
}  // namespace cairn::parallel
