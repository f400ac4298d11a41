// Steps as CUDA graphs give the results of ordinary steps. On a CPU the graph is imitated; OnGpu.* tests real ones.
#include "train/steps/cuda_graph_step.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "parallel/pass.h"
#include "train/build.h"
#include "train/refusal.h"
#include "train/steps/device_graph.h"
#include "train/steps/gradient_step.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

base::Recipe recorded_recipe(const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 2, embed = 32, heads = 2, kv_heads = 1, mlp = 48}
    data = {vocab = 260, length = 16, stories_bytes = 20000}
    train = {global_batch = 6, steps = 12}
    optim = {learning_rate = 0.01, warmup_steps = 4}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {fraction = 0}
  )",
                                            "recorded.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

struct Counted {
  int recorded = 0, started = 0;
  int updated = 0;  // replays that changed the weights
};

// Repeats the work into the same tensors, as a device would. The reducer starts over, because a replay runs no host code.
class Imitation final : public DeviceGraph {
 public:
  Imitation(parallel::ParameterStore& store, Counted& counted, int64_t passes) : store_(store), counted_(counted), passes_(passes) {}

  void capture(const std::function<void()>& work) override {
    work();
    work_ = work;
    ++counted_.recorded;
  }
  void replay() override {
    ++counted_.started;
    if (std::exchange(was_started_, true)) {
      EXPECT_TRUE(store_.reducer().is_complete()) << "all gradients are complete";
      store_.reducer().begin(passes_, passes_, {});
      const at::Tensor before = store_.pieces()[0].value.clone();
      work_();
      counted_.updated += !at::equal(before, store_.pieces()[0].value);
    }
  }

 private:
  parallel::ParameterStore& store_;
  Counted& counted_;
  int64_t passes_;
  bool was_started_ = false;  // the capture did the first work here; on a device it would not run yet
  std::function<void()> work_;
};

struct Taken {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  int repeated = 0, updates = 0;  // steps whose passes, and whose update too, were replayed
};

Taken take_steps(const base::Recipe& recipe, int steps, int64_t passes, Counted* counted) {
  Taken taken;
  harness::on_ranks(1, [&](comm::World& world) {
    const auto job = build(world, recipe, {}, {});
    parallel::ParameterStore& store = *job->engine.store;
    if (counted)
      job->step =
          make_cuda_graph_step(in_turn(parallel::execute), std::make_unique<CudaGraphStep>(store.reducer(), [&store, counted, passes] {
                                 return std::make_unique<Imitation>(store, *counted, passes);
                               }));
    std::vector<at::Tensor> sums;  // read at the end: later steps must not overwrite them
    for (int i = 0; i < steps; ++i) {
      sums.push_back(take_step(*job).output.loss_sum);
      ++job->progress.steps_done;
      const sync::StepMetrics notes = job->step->metrics();
      if (counted) taken.repeated += static_cast<int>(sync::metric(notes, "recorded_passes"));
      if (counted) taken.updates += static_cast<int>(sync::metric(notes, "recorded_update"));
    }
    for (const at::Tensor& sum : sums) taken.losses.push_back(sum.item<double>());
    for (const parallel::ParameterSlice& piece : job->engine.store->pieces()) taken.weights.push_back(piece.value.clone());
  });
  return taken;
}

TEST(CudaGraphStep, GivesTheResultsOfOrdinarySteps) {
  struct {
    std::vector<std::string> sets;
    int64_t passes;
    bool updates;  // the update is captured too
  } const cases[] = {{{}, 1, true},
                     {{"train.micro_batch=2", "optim.max_grad_norm=0.5"}, 3, true},
                     {{"train.precision=\"bf16\"", "recompute.mode=\"full\""}, 1, true},
                     {{"train.precision=\"bf16\"", "train.parameters=\"bf16\"", "optim.moments=\"bf16\""}, 1, true},
                     {{"train.on_bad_step=\"skip\""}, 1, false},
                     {{"optim.kind=\"muon\""}, 1, false}};
  for (const auto& c : cases) {
    const base::Recipe recipe = recorded_recipe(c.sets);
    Counted counted;
    const Taken plain = take_steps(recipe, 12, c.passes, nullptr), again = take_steps(recipe, 12, c.passes, &counted);
    EXPECT_EQ(again.losses, plain.losses);
    ASSERT_EQ(again.weights.size(), plain.weights.size());
    for (size_t i = 0; i < plain.weights.size(); ++i) EXPECT_TRUE(at::equal(again.weights[i], plain.weights[i])) << i;
    EXPECT_EQ(counted.recorded, 1);
    EXPECT_EQ(counted.started, 9) << "the first three run without a graph";
    EXPECT_EQ(counted.updated, c.updates ? 8 : 0) << (c.sets.empty() ? "" : c.sets[0]);
    EXPECT_EQ(again.repeated, 9);
    EXPECT_EQ(again.updates, c.updates ? 9 : 0);
  }
}

TEST(CudaGraphStep, RareShapesAreNotCaptured) {
  harness::on_ranks(1, [&](comm::World& world) {
    const auto job = build(world, recorded_recipe({}), {}, {});
    const mesh::Batch batch = job->ahead.loader->next();
    Counted counted;
    int made = 0;
    parallel::ParameterStore& store = *job->engine.store;
    CudaGraphStep recorded(store.reducer(), [&] { return std::make_unique<Imitation>(store, counted, 1); });
    const CudaGraphStep::Work work = [](std::span<const parallel::Pass> passes, const at::Tensor&) {
      return std::vector<at::Tensor>{parallel::execute(passes[0]).sum};
    };
    const auto pass_of = [&](int64_t samples) {
      const mesh::Batch part = mesh::slice(batch, 0, samples);
      parallel::Pass pass = pass_over(job->engine, part);
      pass.into = &store.sink();
      store.reducer().begin(1, 1, {});
      const bool should_replay = recorded.should_replay({&pass, 1});
      made += !should_replay;
      const double sum = (should_replay ? recorded.run({&pass, 1}, {}, work) : work({&pass, 1}, {})).front().item<double>();
      store.reducer().finish();
      return sum;
    };
    std::vector<double> first;
    for (int round = 0; round < 3; ++round)
      for (int64_t samples = 1; samples <= 3; ++samples) first.push_back(pass_of(samples));
    EXPECT_EQ(made, 9);
    for (int round = 0; round < 2; ++round)
      for (int64_t samples = 1; samples <= 3; ++samples) EXPECT_EQ(pass_of(samples), first[static_cast<size_t>(samples - 1)]) << samples;
    EXPECT_EQ(counted.recorded, 2) << "each graph has its own memory: the third shape gets none";
    EXPECT_EQ(made, 11);
  });
}

TEST(CudaGraphStep, AreRefusedWhereTheHostDecides) {
  const auto refused = [](const std::vector<std::string>& sets, const std::string& why) {
    base::Recipe recipe = recorded_recipe(sets);
    recipe.set("train.cuda_graph=true");
    EXPECT_THAT(refusal_of(recipe), testing::HasSubstr(why));
  };
  refused({}, "CUDA graphs are for GPUs");
  refused({"model.dropout=0.1"}, "train.cuda_graph = true: does not work with model.dropout = 0.1");
  refused({"train.method=\"one_byte\""}, "the method decides on the host what a pass does");
  refused({"data.kind=\"preference\""}, "a preference needs two passes");
}

}  // namespace
}  // namespace cairn::train
