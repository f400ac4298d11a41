// Supernets in training: the phases of a run, the same losses in any layout, resumed runs, channels in order, refusals.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/model.h"
#include "train/build.h"
#include "train/job.h"
#include "train/refusal.h"
#include "train/state/full_state.h"
#include "train/state/surgery.h"
#include "train/supernet/calibrate.h"
#include "train/supernet/channel_order.h"
#include "train/supernet/shrinking.h"
#include "train/supernet/subnet_space.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

constexpr const char* kConvSupernet = R"(
    [model]
    kind = "cnn"
    [model.cnn]
    widths = [8, 8]
    depths = [2, 2]
    expand = 4
    [data]
    kind = "images"
    [images]
    size = 6
    classes = 4
    count = 96
    held_out = 24
    [supernet]
    depth = [1, 2]
    expand = [1, 2, 4]
    calibration_samples = 60
  )";
constexpr const char* kDecoderSupernet = R"(
    [model]
    layers = 3
    embed = 16
    heads = 4
    kv_heads = 2
    mlp = 32
    [data]
    length = 16
    stories_bytes = 60000
    tokenizer = "bytes"
    [supernet]
    depth = [2, 3]
    mlp = [8, 16, 32]
  )";
constexpr const char* kTraining = R"(
    [train]
    steps = 20
    global_batch = 12
    [optim]
    kind = "sgd"
    momentum = 0.9
    nesterov = true
    learning_rate = 0.05
    warmup_steps = 0
    [log]
    tensorboard = false
    trace = false
    [snapshot]
    every = 0
    [eval]
    every = 0
  )";

base::Recipe supernet_recipe(const std::string& text, const std::vector<std::string>& sets = {}) {
  base::Recipe recipe = base::Recipe::parse(text + kTraining, "supernet");
  recipe.set("supernet.shrink_at=0.5");
  recipe.set("supernet.ramp=0.25");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> column_of(const std::filesystem::path& out, const std::string& name) {
  std::vector<double> values;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
    if (row.has(name)) values.push_back(row.number(name));
  return values;
}

void expect_supernet_losses(const std::vector<double>& found, const std::vector<double>& expected, double bound, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], bound * std::max(1.0, std::abs(expected[i]))) << what << ", step " << i + 1;
}

TEST(Supernets, BeginToShrinkOnARamp) {
  const harness::ScratchFolder scratch;
  train_on(1, supernet_recipe(kConvSupernet), scratch / "run");
  const std::vector<double> nets = column_of(scratch / "run", "nets"), weight = column_of(scratch / "run", "subnet_weight"),
                            rate = column_of(scratch / "run", "subnet_learning_rate"), lr = column_of(scratch / "run", "lr");
  ASSERT_EQ(nets.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    // The ramp begins before the sixth step, with weight 0.
    EXPECT_EQ(nets[i], i < 6 ? 1 : 4) << i;
    EXPECT_NEAR(rate[i], weight[i] * lr[i], 1e-12);
    EXPECT_EQ(weight[i] == 1, i >= 10) << i;
  }
  for (size_t i = 6; i < 10; ++i) EXPECT_NEAR(rate[i] / rate[6], static_cast<double>(i) - 5, 1e-9) << i;
  EXPECT_EQ(column_of(scratch / "run", "smallest_loss").size(), 14u);
  EXPECT_EQ(column_of(scratch / "run", "subnet_work").front(), 1);
  EXPECT_GT(column_of(scratch / "run", "subnet_work").back(), 1.5);
}

// Until it begins to shrink, the run is that of the network without subnets.
TEST(Supernets, AreOrdinaryTrainingAtFirst) {
  const harness::ScratchFolder scratch;
  for (const char* text : {kConvSupernet, kDecoderSupernet}) {
    const bool conv = text == kConvSupernet;
    const std::filesystem::path out = scratch / (conv ? "cnn" : "decoder");
    const std::vector<double> supernet = losses_on(1, supernet_recipe(text), out);
    std::string plain = text;
    plain.resize(plain.find("[supernet]"));
    const std::vector<double> alone = losses_on(1, base::Recipe::parse(plain + kTraining, "plain"), scratch / (conv ? "a" : "b"));
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(supernet[i], alone[i], 1e-6) << i;  // the update adds gradients in another order
    EXPECT_NEAR(supernet[5], alone[5], 1e-5);  // its channels are in another order
    EXPECT_NE(supernet[12], alone[12]);
  }
}

TEST(Supernets, GiveTheSameLossesInEveryLayout) {
  const harness::ScratchFolder scratch;
  struct Layout {
    int ranks;
    std::vector<std::string> sets;
  };
  const auto losses = [&](const char* text, const Layout& layout, const std::string& name) {
    return losses_on(layout.ranks, supernet_recipe(text, layout.sets), scratch / name);
  };
  const std::vector<double> alone = losses(kDecoderSupernet, {1, {}}, "alone");
  const std::vector<Layout> layouts{{4, {}},
                                    {4, {"memory.zero=1"}},
                                    {4, {"memory.zero=2"}},
                                    {4, {"memory.zero=3"}},
                                    {3, {"memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
                                    {1, {"train.micro_batch=4"}},
                                    {1, {"recompute.mode=full"}},
                                    {2, {"mesh.tp=2"}},
                                    {4, {"mesh.tp=4"}},
                                    {2, {"mesh.cp=2"}}};
  for (size_t i = 0; i < layouts.size(); ++i)
    expect_supernet_losses(losses(kDecoderSupernet, layouts[i], "layout" + std::to_string(i)), alone, 1e-5, "layout " + std::to_string(i));
  // Along pp the layers that may be left out share a stage.
  const std::vector<std::string> shallow{"supernet.depth=[3]"}, deep{"supernet.depth=[3]", "mesh.pp=3"};
  expect_supernet_losses(losses(kDecoderSupernet, {3, deep}, "pp3"), losses(kDecoderSupernet, {1, shallow}, "widths"), 1e-5, "pp3");
  expect_supernet_losses(losses(kDecoderSupernet, {1, {"train.precision=bf16"}}, "bf16"), alone, 0.02, "bf16");
}

// One all-reduce of the gradients of all passes, whatever their number.
TEST(Supernets, ReduceGradientsOnceAStep) {
  const harness::ScratchFolder scratch;
  const auto sent = [&](const std::string& name, const std::vector<std::string>& sets) {
    comm::LocalNetwork network(2);
    for (const std::exception_ptr& error : network.run([&](comm::World& world) {
           run(world, supernet_recipe(kConvSupernet, sets), {.out = scratch / name, .cache = {}, .terminal = nullptr}, {}, base::Stop());
         }))
      if (error) std::rethrow_exception(error);
    return network.ledger().bytes_sent(0, comm::Purpose::gradient);
  };
  const int64_t once = sent("one", {"supernet.shrink_at=0.99", "supernet.ramp=0"});
  EXPECT_GT(once, 0);
  EXPECT_EQ(sent("four", {"supernet.method=early"}), once);
}

TEST(Supernets, ResumeBitwise) {
  const harness::ScratchFolder scratch;
  for (const char* text : {kConvSupernet, kDecoderSupernet}) {
    const std::string name = text == kConvSupernet ? "cnn" : "decoder";
    const base::Recipe recipe = supernet_recipe(text, {"snapshot.every=1", "snapshot.keep=100"});
    const std::vector<double> whole = losses_on(1, recipe, scratch / name);
    for (const int64_t step : {3, 5, 8, 14}) {  // before, at the beginning of, and on the ramp, and after it
      const std::filesystem::path out = scratch / (name + std::to_string(step));
      std::filesystem::copy(scratch / name, out, std::filesystem::copy_options::recursive);
      for (const auto& entry : std::filesystem::directory_iterator(out / "snapshots"))
        if (entry.path().filename().string() > fmt::format("step-{:08}", step)) std::filesystem::remove_all(entry.path());
      EXPECT_EQ(losses_on(1, recipe, out, /*resume=*/true), whole) << name << " after step " << step;
    }
  }
}

// Builds a job on one rank and trains it by hand.
void with_job(const base::Recipe& recipe, const std::function<void(Job&, comm::World&)>& act) {
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         const std::unique_ptr<Job> job = build(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {});
         act(*job, world);
       }))
    if (error) std::rethrow_exception(error);
}

TEST(Supernets, SortingChannelsChangesNothingOfTheWholeNetwork) {
  for (const char* text : {kConvSupernet, kDecoderSupernet})
    with_job(supernet_recipe(text, {"supernet.shrink_at=0.5", "supernet.ramp=0.5"}), [&](Job& job, comm::World& world) {
      // Random momentum, and statistics of real batches.
      for (const StateTensor& one : optimizer_state(job))
        if (one.mine.defined()) one.mine.normal_(0, 1e-3);
      const SubnetSpace space = subnet_space(job);
      { const ScopedSubnet calibrated(job, space.whole(), 60); }
      const double before = evaluate_held_out(job).loss;
      std::map<std::string, at::Tensor> moments;
      for (const StateTensor& one : optimizer_state(job)) moments[one.name] = one.mine.clone();
      const auto order = make_channel_order(job, world);
      ASSERT_NE(order, nullptr);
      order->before_step(1);
      EXPECT_EQ(order->state().front().tensor[0].item<int64_t>(), 1);
      EXPECT_NEAR(evaluate_held_out(job).loss, before, 1e-5);
      double moved = 0;
      for (const StateTensor& one : optimizer_state(job)) {
        moved += (one.mine - moments.at(one.name)).abs().max().item<double>();
        EXPECT_NEAR(one.mine.abs().sum().item<double>(), moments.at(one.name).abs().sum().item<double>(), 1e-4) << one.name;
      }
      EXPECT_GT(moved, 0);
      // The most important channels come first now.
      for (const model::ElasticLayer& layer : space.shape.layers) {
        const auto& all = job.engine.model->parameters();
        const auto found = std::ranges::find(all, layer.projection.name, &model::Parameter::name);
        const at::Tensor weight = whole_parameter(job, static_cast<size_t>(found - all.begin()));
        const at::Tensor importance = weight.abs().sum(1 - layer.projection.dim);
        EXPECT_TRUE(at::equal(importance, std::get<0>(importance.sort(/*dim=*/0, /*descending=*/true)))) << layer.name;
      }
    });
}

TEST(Supernets, CalibrateSubnetsAndLeaveTheRunAsItWas) {
  with_job(supernet_recipe(kConvSupernet), [](Job& job, comm::World&) {
    const SubnetSpace space = subnet_space(job);
    std::map<std::string, at::Tensor> before;
    for (const mesh::NamedTensor& one : model::running_buffers(job.engine.buffers)) before[one.name] = one.tensor.clone();
    double short_loss = 0, long_loss = 0, uncalibrated = 0;
    {
      const ScopedSubnet scoped(job, space.smallest(), 60);
      short_loss = evaluate_held_out(job).loss;
    }
    {
      const ScopedSubnet scoped(job, space.smallest(), 96);
      long_loss = evaluate_held_out(job).loss;
    }
    job.engine.options.subnet = nullptr;
    const model::Subnet smallest = space.smallest();
    job.engine.options.subnet = &smallest;
    uncalibrated = evaluate_held_out(job).loss;
    job.engine.options.subnet = nullptr;
    EXPECT_NEAR(short_loss, long_loss, 0.1);
    EXPECT_GT(std::abs(uncalibrated - long_loss), 1e-4);
    for (const mesh::NamedTensor& one : model::running_buffers(job.engine.buffers)) EXPECT_TRUE(at::equal(one.tensor, before.at(one.name)));
    EXPECT_EQ(job.engine.options.subnet, nullptr);
    EXPECT_FALSE(job.engine.options.batch_statistics);
  });
}

TEST(Supernets, MeasureFixedSubnetsInEveryEvaluation) {
  const harness::ScratchFolder scratch;
  train_on(1, supernet_recipe(kConvSupernet, {"eval.every=10"}), scratch / "run");
  for (const char* name : {"eval_loss", "eval_smallest_accuracy", "eval_medium_1_accuracy", "eval_medium_2_loss"})
    EXPECT_EQ(column_of(scratch / "run", name).size(), 2u) << name;
}

TEST(Shrinking, WeighsSubnetsSoThatTheirRateRisesLinearly) {
  const optim::LrSchedule schedule{.shape = "cosine", .highest = 0.2, .min_lr_ratio = 0};
  const model::SupernetOptions deps{.shrink_at = 0.5, .ramp = 0.1};
  const auto rate = [&](double progress) {
    return subnet_weight(deps, schedule, progress, schedule.learning_rate(progress)) * schedule.learning_rate(progress);
  };
  EXPECT_EQ(rate(0.39), 0);
  for (const double part : {0.1, 0.5, 0.9}) EXPECT_NEAR(rate(0.4 + 0.1 * part), part * schedule.learning_rate(0.5), 1e-12);
  EXPECT_NEAR(rate(0.5), schedule.learning_rate(0.5), 1e-12);
  EXPECT_EQ(subnet_weight(deps, schedule, 0.7, 0.1), 1);
  const model::SupernetOptions early{.method = model::ShrinkMethod::early}, late{.method = model::ShrinkMethod::late, .shrink_at = 0.7};
  EXPECT_EQ(subnet_weight(early, schedule, 0, 0.2), 1);
  EXPECT_EQ(subnet_weight(late, schedule, 0.69, 0.2), 0);
  EXPECT_EQ(subnet_weight(late, schedule, 0.7, 0.2), 1);
}

TEST(Shrinking, ALateStartHasTwoSchedules) {
  const optim::LrSchedule schedule{
      .shape = "cosine", .highest = 0.2, .warmup = 0.07, .min_lr_ratio = 0, .restart_at = 0.7, .restart_ratio = 0.3};
  EXPECT_NEAR(schedule.learning_rate(0.07), 0.2, 1e-12);
  EXPECT_NEAR(schedule.learning_rate(0.7), 0, 1e-12);
  EXPECT_NEAR(schedule.learning_rate(0.85), 0.03, 1e-12);
  EXPECT_NEAR(schedule.learning_rate(1), 0, 1e-12);
}

TEST(Supernets, RefuseWhatDoesNotFit) {
  const auto refused = [](const char* text, const std::vector<std::string>& sets, int ranks = 1) {
    return refusal_of(supernet_recipe(text, sets), ranks);
  };
  EXPECT_THAT(refused(kConvSupernet, {"supernet.shrink_at=1"}), HasSubstr("supernet.shrink_at = 1: must be a fraction"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.shrink_at=0"}), HasSubstr("supernet.shrink_at = 0"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.ramp=0.6"}), HasSubstr("supernet.ramp = 0.6: begins before the run does"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.nets_per_step=1"}), HasSubstr("supernet.nets_per_step"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.depth=[0, 2]"}), HasSubstr("supernet.depth"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.depth=[1, 3]"}), HasSubstr("its stage 0 has 2 layers"));
  EXPECT_THAT(refused(kConvSupernet, {"model.cnn.widths=[3, 3]", "supernet.expand=[1, 2, 4]"}),
              HasSubstr("1 and 2 give the same 8 channels"));
  EXPECT_THAT(refused(kConvSupernet, {"supernet.depth=[]", "supernet.expand=[]"}), HasSubstr("there is nothing to choose from"));
  EXPECT_THAT(refused(kConvSupernet, {"mesh.tp=2"}, 2), HasSubstr("mesh.tp = 2"));
  EXPECT_THAT(refused(kDecoderSupernet, {"supernet.depth=[1, 3]", "mesh.pp=3"}, 3),
              HasSubstr("mesh.pp = 3: supernet.depth leaves out layers"));
  EXPECT_THAT(refused(kDecoderSupernet, {"supernet.depth=[1, 3]", "mesh.pp=2"}, 2), HasSubstr("layers that may be left out must share one"));
  EXPECT_THAT(refused(kDecoderSupernet, {"supernet.mlp=[8, 15, 32]", "mesh.tp=2"}, 2), HasSubstr("widths that are 7 apart"));
  EXPECT_THAT(refused(kDecoderSupernet, {"model.residual=ladder"}), HasSubstr("supernet.depth: a layer can be left out"));
  EXPECT_THAT(refused(kDecoderSupernet, {"train.loss_chunks=2"}), HasSubstr("whole logits"));
  EXPECT_THAT(refused(kDecoderSupernet, {"recompute.mode=stream"}), HasSubstr("whole logits"));
  EXPECT_THAT(refused(kDecoderSupernet, {"train.precision=bf16", "train.fp8=layers"}), HasSubstr("no fp8 codes"));
  EXPECT_THAT(refused(kDecoderSupernet, {"model.parscale.streams=2"}), HasSubstr("model.parscale.streams = 2"));
  EXPECT_THAT(refused(kDecoderSupernet, {"train.method=one_byte"}), HasSubstr("train.method"));
}

}  // namespace
}  // namespace cairn::train
