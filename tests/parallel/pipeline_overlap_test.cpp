// What a pipeline does while it waits, in virtual time: blocks that take time on the world's clock.
#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/schedule/extra_actions.h"

namespace cairn::parallel {
namespace {

using std::chrono::milliseconds;
// Of a block; a backward is two gradients.
constexpr auto kForward = milliseconds(30), kGradient = milliseconds(30);

std::string nth_value(int i) { return fmt::format("value.{}", i); }

class SlowBlock final : public model::Block {
 public:
  SlowBlock(comm::World& world, int index) : world_(world), index_(index) {
    card_.name = fmt::format("layers.{}.slow", index);
    card_.reads = {nth_value(index)};
    card_.writes = {nth_value(index + 1)};
    card_.operations = {{.name = "wait", .flops_per_token = 1}};
  }
  const model::Card& card() const override { return card_; }
  void forward(model::Values& values, model::Saved* keep, const model::Call& /*call*/) const override {
    const at::Tensor in = values.get(nth_value(index_));
    take(kForward);
    if (keep) keep->put("in", in);
    values.put(nth_value(index_ + 1), in + 1);
  }
  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& /*call*/) const override {
    const at::Tensor dout = gradients.take(nth_value(index_ + 1));
    take(kGradient);
    EXPECT_EQ(saved.get("in")[0][0].item<float>(), static_cast<float>(index_));
    gradients.add(nth_value(index_), dout * 2);
  }
  void backward_weight(model::Saved&& /*saved*/, mesh::Gradients& /*into*/, const model::Call& /*call*/) const override { take(kGradient); }
  void plain(model::Values& values, const model::Call& call) const override { forward(values, nullptr, call); }

 private:
  void take(std::chrono::nanoseconds time) const { world_.timer(world_.clock().now() + time).wait(); }

  comm::World& world_;
  int index_;
  model::Card card_;
};

class SlowModel final : public model::Model {
 public:
  model::Buffers make_buffers(const at::TensorOptions& /*options*/) const override { return {}; }
};

class OnesObjective final : public model::Objective {
 public:
  explicit OnesObjective(int blocks) : last_(nth_value(blocks)) {}
  Separates separates() const override { return Separates::samples; }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double /*weight*/,
                         const mesh::Axes& /*axes*/) const override {
    const at::Tensor& out = outputs.get(last_);
    if (gradients) gradients->add(last_, at::ones(out.sizes()));
    return {.sum = out.sum().to(at::kDouble), .count = at::full({}, batch.samples(), at::kLong)};
  }

 private:
  std::string last_;
};

struct SlowRun {
  std::string schedule = "gpipe";
  int ranks = 4, stages_per_rank = 1, blocks_per_stage = 1, micro_batches = 4;
  ExtraActions extra = {};
  model::PassOptions options = {.recompute_stage = true};
};

struct SlowTimes {
  double step_s = 0;
  double loss = 0;                           // of the last stage, summed
  std::vector<std::vector<Action>> actions;  // by rank, as executed
};

SlowTimes time_step(const SlowRun& run) {
  SlowTimes times;
  times.actions.resize(static_cast<size_t>(run.ranks));
  std::mutex mutex;
  const int blocks = run.ranks * run.stages_per_rank * run.blocks_per_stage;
  const comm::LinkModel link{.latency = std::chrono::microseconds(1), .bytes_per_s = 1e15, .jitter = 0};
  harness::on_ranks(run.ranks, {.link = link}, [&](comm::World& world) {
    SlowModel model;
    for (int i = 0; i < blocks; ++i) model.add(std::make_unique<SlowBlock>(world, i));
    const OnesObjective objective(blocks);
    const auto make = [&](int micro_batches) {
      return add_actions(
          make_schedule({.name = run.schedule, .ranks = run.ranks, .stages_per_rank = run.stages_per_rank, .micro_batches = micro_batches}),
          run.extra);
    };
    Plan plan;
    plan.mesh.axes = {{"pp", run.ranks}};
    plan.rank_of_stage = make(run.micro_batches).rank_of_stage;
    plan.stage_blocks.assign(plan.rank_of_stage.size(), run.blocks_per_stage);
    Pipeline pipeline(model, plan, single_pipeline(world.everyone()), make);
    const model::FlatWeights weights(model.layout(), at::empty({0}));
    mesh::FlatGradients sink(model.layout(), at::empty({0}), {});
    const mesh::Axes axes;
    model::Buffers buffers;
    mesh::Batch batch;
    batch.ids = at::arange(1);
    batch.fields[nth_value(0)] = {at::zeros({1, 3})};
    const std::vector<Pass> passes(static_cast<size_t>(run.micro_batches), Pass{.model = model,
                                                                                .at = weights,
                                                                                .buffers = buffers,
                                                                                .axes = axes,
                                                                                .batch = batch,
                                                                                .objective = objective,
                                                                                .into = &sink,
                                                                                .options = run.options,
                                                                                .recompute = true});
    double took = 0, loss = 0;
    for (const bool counts : {false, true}) {  // the first step announces shapes
      world.everyone().barrier("step").wait_host();
      const auto begun = world.clock().now();
      loss = 0;
      for (const model::Losses& one : pipeline.run(passes)) loss += one.sum.item<double>();
      if (counts) took = base::seconds(world.clock().now() - begun);
    }
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) times.step_s = took;  // a step begins and ends there
    times.loss += loss;
    for (const TimedAction& one : pipeline.measured()) times.actions[static_cast<size_t>(world.rank())].push_back(one.action);
  });
  return times;
}

// A step ends on the first rank: m + p - 1 forwards, as many recomputations and backwards.
TEST(PipelineOverlap, RecomputationOfAStageRunsWhileItsGradientIsOnTheWay) {
  for (const int ranks : {2, 3, 4}) {
    const SlowTimes late = time_step({.ranks = ranks}), ahead = time_step({.ranks = ranks, .extra = {.recompute = true}});
    EXPECT_NEAR(late.step_s, 0.120 * (4 + ranks - 1), 1e-4) << ranks;
    EXPECT_NEAR(late.step_s - ahead.step_s, 0.030 * (ranks - 1), 1e-4) << ranks;
    EXPECT_EQ(late.loss, ahead.loss);
    EXPECT_EQ(ahead.loss, 3.0 * ranks * 4);
  }
}

TEST(PipelineOverlap, OfBlocksIsTheLastOrAllOfThem) {
  const model::PassOptions every{.recompute = std::vector<bool>(12, true)};
  model::PassOptions all = every;
  all.recompute_all_ahead = true;
  const SlowRun late{.ranks = 4, .blocks_per_stage = 3, .options = every};
  SlowRun first = late, whole = late;
  first.extra.recompute = whole.extra.recompute = true;
  whole.options = all;
  const double none_s = time_step(late).step_s;
  EXPECT_NEAR(none_s - time_step(first).step_s, 3 * 0.030, 1e-4);
  EXPECT_NEAR(none_s - time_step(whole).step_s, 3 * 0.090, 1e-4);
}

TEST(PipelineOverlap, EveryScheduleExecutesItsActionsInOrder) {
  constexpr ExtraActions extra{.recompute = true, .offload = true, .gather = true, .reduce = true};
  for (const ScheduleKind& kind : schedule_kinds()) {
    const int micro_batches = kind.micro_batches == MicroBatchRule::any ? 5 : 6;
    const SlowTimes times = time_step({.schedule = kind.name,
                                       .ranks = 3,
                                       .stages_per_rank = kind.default_stages_per_rank,
                                       .micro_batches = micro_batches,
                                       .extra = extra});
    const Schedule schedule = add_actions(make_schedule({.name = kind.name, .ranks = 3, .micro_batches = micro_batches}), extra);
    EXPECT_EQ(times.actions, schedule.actions) << kind.name;
    EXPECT_EQ(times.loss, 3.0 * 3 * kind.default_stages_per_rank * micro_batches) << kind.name;
  }
}

TEST(PipelineOverlap, WithoutRecomputationTheActionDoesNothing) {
  const SlowTimes none = time_step({.options = {}}), ahead = time_step({.extra = {.recompute = true}, .options = {}});
  EXPECT_NEAR(none.step_s, ahead.step_s, 1e-9);
}

}  // namespace
}  // namespace cairn::parallel
