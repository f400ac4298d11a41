// Pipelines whose micro-batches change over between replicas: the routes, and gradients against a replay of them in one process.
#include "parallel/pipeline/routing.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/stage_run.h"
#include "parallel/token_batch.h"

namespace cairn::parallel {
namespace {

TEST(Routes, AreInvertible) {
  const Routes routes(base::Random(5), 5, 4, 3);
  for (int m = 0; m < 4; ++m)
    for (int from = 0; from < 3; ++from)
      for (int to = 0; to < 3; ++to) {
        std::set<int> taken;
        for (int replica = 0; replica < 5; ++replica) {
          const int there = routes.replica_at(m, replica, from, to);
          taken.insert(there);
          EXPECT_EQ(routes.replica_at(m, there, to, from), replica);
        }
        EXPECT_EQ(taken.size(), 5U);
      }
  EXPECT_EQ(routes.replica_at(2, 3, 0, 2), routes.replica_at(2, routes.replica_at(2, 3, 0, 1), 1, 2));
}

TEST(Routes, AreDrawnAnewForEveryStepMicroBatchAndBorder) {
  const auto row = [](const Routes& routes, int m, int border) {
    std::vector<int> to;
    for (int replica = 0; replica < 16; ++replica) to.push_back(routes.replica_at(m, replica, border, border + 1));
    return to;
  };
  const Routes one(base::Random(5), 16, 2, 3), again(base::Random(5), 16, 2, 3), other(base::Random(6), 16, 2, 3);
  EXPECT_EQ(row(one, 1, 1), row(again, 1, 1));
  EXPECT_NE(row(one, 1, 1), row(one, 1, 0));
  EXPECT_NE(row(one, 1, 1), row(one, 0, 1));
  EXPECT_NE(row(one, 1, 1), row(other, 1, 1));
}

// All builds must draw the same numbers, or ranks of a mixed run would wait for each other for ever.
TEST(Routes, AreThoseOfEveryOtherBuild) {
  const Routes routes(base::Random(1), 4, 1, 3);
  std::vector<int> found;
  for (int border = 0; border < 2; ++border)
    for (int replica = 0; replica < 4; ++replica) found.push_back(routes.replica_at(0, replica, border, border + 1));
  EXPECT_EQ(found, (std::vector<int>{3, 2, 1, 0, 2, 0, 1, 3}));
}

struct RoutedCase {
  std::string name;
  int replicas, ranks;
  std::string schedule = "1f1b";
  int stages_per_rank = 1;
  bool tied = true;
};
std::ostream& operator<<(std::ostream& out, const RoutedCase& c) { return out << c.name; }

constexpr int kMicroBatches = 6;
constexpr int64_t kVocab = 19;

// A decoder cut into stages, its weights on every replica, and what each replica learns from.
struct Ground {
  std::unique_ptr<model::Model> model;
  Plan plan;
  mesh::FlatLayout layout;
  std::vector<at::Tensor> weights;                // by replica
  std::vector<std::vector<mesh::Batch>> batches;  // by replica
  std::unique_ptr<model::Objective> objective = model::make_next_token();

  explicit Ground(const RoutedCase& c)
      : model(model::make_decoder(
            {.vocab = kVocab, .embed = 8, .layers = 4, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 12, .length = 16, .tied = c.tied})),
        layout(model->layout()) {
    const Schedule schedule = schedule_for(c, kMicroBatches);
    plan.mesh.axes = {{"island", c.replicas}, {"pp", c.ranks}};
    plan.schedule = schedule.name;
    plan.rank_of_stage = schedule.rank_of_stage;
    const auto blocks = static_cast<int64_t>(model->blocks().size());
    for (int stage = 0; stage < schedule.stages(); ++stage)
      plan.stage_blocks.push_back(blocks * (stage + 1) / schedule.stages() - blocks * stage / schedule.stages());
    for (int replica = 0; replica < c.replicas; ++replica) {
      weights.push_back(at::empty({layout.elements}, at::kDouble));
      model::initialize_parameters(*model, weights.back(), base::Random(static_cast<uint64_t>(replica)));
      weights.back().mul_(8);
      batches.emplace_back();
      for (int m = 0; m < kMicroBatches; ++m) {
        mesh::Batch batch = token_batch(2, 5 + replica, kVocab);  // each replica with sequences of its own length
        for (auto& [name, field] : batch.fields) field.tensor = field.tensor.roll(m + replica, 1);
        batch.ids = batch.ids + 10 * replica + m;
        batch.weights = at::full({2}, 1.0 + m, at::kDouble);
        batches.back().push_back(std::move(batch));
      }
    }
  }

  static Schedule schedule_for(const RoutedCase& c, int micro_batches) {
    return make_schedule({.name = c.schedule, .ranks = c.ranks, .stages_per_rank = c.stages_per_rank, .micro_batches = micro_batches});
  }
  base::Random step() const { return base::Random(11).for_index(3); }
};

// What a rank's stages, or a replay of them, learn of one step.
struct Learned {
  at::Tensor gradients;
  mesh::FlatGradients sink;
  model::Buffers buffers;
  Learned(const Ground& ground)
      : gradients(at::zeros({ground.layout.elements}, at::kDouble)),
        sink(ground.layout, gradients, ground.model->uses()),
        buffers(ground.model->make_buffers(at::TensorOptions().dtype(at::kDouble))) {
    sink.begin(kMicroBatches, nullptr);
  }
};

Pass pass_of(const Ground& ground, const model::Weights& at, Learned& into, const mesh::Axes& alone, const mesh::Batch& batch) {
  return {.model = *ground.model,
          .at = at,
          .buffers = into.buffers,
          .axes = alone,
          .batch = batch,
          .objective = *ground.objective,
          .into = &into.sink,
          .weight = 1.0 / 17,
          .random = ground.step()};
}

class Routed : public testing::TestWithParam<RoutedCase> {};

TEST_P(Routed, GradientsAreThoseOfAReplay) {
  const RoutedCase& c = GetParam();
  const Ground ground(c);
  const int stages = static_cast<int>(ground.plan.stage_blocks.size());
  const Routes routes(ground.step(), c.replicas, kMicroBatches, stages);
  const std::vector<StageEdge> edges = stage_edges(*ground.model, ground.plan);
  const mesh::Axes alone;

  // The replay: each micro-batch from stage to stage and back, wherever its route leads.
  std::map<std::pair<int, int>, std::unique_ptr<Learned>> learned;  // by replica and rank along pp
  for (int replica = 0; replica < c.replicas; ++replica)
    for (int rank = 0; rank < c.ranks; ++rank) learned[{replica, rank}] = std::make_unique<Learned>(ground);
  std::map<int, double> losses;  // by replica that judges
  int changed = 0;
  for (int origin = 0; origin < c.replicas; ++origin)
    for (int m = 0; m < kMicroBatches; ++m) {
      std::vector<std::unique_ptr<model::FlatWeights>> weights;
      std::vector<Pass> passes;
      std::vector<std::unique_ptr<StageRun>> runs;
      for (int stage = 0; stage < stages; ++stage) {
        const int replica = routes.replica_at(m, origin, 0, stage), rank = ground.plan.rank_of_stage[static_cast<size_t>(stage)];
        changed += replica != origin ? 1 : 0;
        weights.push_back(std::make_unique<model::FlatWeights>(ground.layout, ground.weights[static_cast<size_t>(replica)]));
        passes.push_back(pass_of(ground, *weights.back(), *learned.at({replica, rank}), alone,
                                 ground.batches[static_cast<size_t>(origin)][static_cast<size_t>(m)]));
        for (const StageEdge& one : edges)
          if (one.from == stage) passes.back().outputs.push_back(one.value);
      }
      for (int stage = 0; stage < stages; ++stage) {
        runs.push_back(std::make_unique<StageRun>(passes[static_cast<size_t>(stage)],
                                                  blocks_of_stage(ground.plan, stage, ground.model->blocks().size()), false));
        for (const StageEdge& one : edges)
          if (one.to == stage) runs.back()->put(one.value, runs[static_cast<size_t>(one.from)]->output(one.value));
        runs.back()->forward();
      }
      losses[routes.replica_at(m, origin, 0, stages - 1)] += runs.back()->evaluate_objective().sum.item<double>();
      for (int stage = stages; stage-- > 0;) {
        runs[static_cast<size_t>(stage)]->backward();
        for (const StageEdge& one : edges)
          if (one.to == stage)
            runs[static_cast<size_t>(one.from)]->put_gradient(one.value, runs[static_cast<size_t>(stage)]->input_gradient(one.value));
      }
    }
  EXPECT_EQ(changed > 0, c.replicas > 1);

  harness::on_ranks(c.replicas * c.ranks, [&](comm::World& world) {
    const PipelineTopology at = island_pipelines(ground.plan, world.everyone(), world.rank());
    const model::FlatWeights weights(ground.layout, ground.weights[static_cast<size_t>(at.replica)]);
    Pipeline pipeline(*ground.model, ground.plan, at, [&](int m) { return Ground::schedule_for(c, m); });
    const bool judges = at.along == ground.plan.rank_of_stage.back();
    for (int again = 0; again < 2; ++again) {  // the second time all shapes are known
      Learned here(ground);
      std::vector<Pass> passes;
      for (const mesh::Batch& batch : ground.batches[static_cast<size_t>(at.replica)])
        passes.push_back(pass_of(ground, weights, here, alone, batch));
      double loss = 0;
      for (const model::Losses& one : pipeline.run(passes)) loss += one.sum.item<double>();
      EXPECT_LT((here.gradients - learned.at({at.replica, at.along})->gradients).abs().max().item<double>(), 1e-12);
      EXPECT_GT(here.gradients.abs().max().item<double>(), 1e-3);
      EXPECT_NEAR(loss, judges ? losses.at(at.replica) : 0, 1e-10);
      // Where nothing is learned, each replica's model is its own.
      Pass judged = pass_of(ground, weights, here, alone, passes.front().batch);
      judged.into = nullptr;
      const double found = pipeline.run({&judged, 1}).front().sum.item<double>();
      EXPECT_NEAR(found, judges ? execute(judged).sum.item<double>() : 0, 1e-10);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Routed,
                         testing::Values(RoutedCase{"1x2", 1, 2}, RoutedCase{"4x2", 4, 2}, RoutedCase{"3x3", 3, 3}, RoutedCase{"2x4", 2, 4},
                                         RoutedCase{"4x2apart", 4, 2, "1f1b", 1, false},
                                         RoutedCase{"3x2interleaved", 3, 2, "interleaved", 2}, RoutedCase{"4x2gpipe", 4, 2, "gpipe"}),
                         [](const auto& one) { return "n" + one.param.name; });

TEST(Routed, RefusesAScheduleThatKeepsAValueOnItsRank) {
  const RoutedCase c{"v", 2, 2, "zbv", 2};
  harness::on_ranks(4, [&](comm::World& world) {
    const Ground ground(c);
    try {
      Pipeline(*ground.model, ground.plan, island_pipelines(ground.plan, world.everyone(), world.rank()),
               [&](int m) { return Ground::schedule_for(c, m); });
      FAIL() << "no refusal";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("Use a schedule with one stage per rank (1f1b)"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace cairn::parallel
