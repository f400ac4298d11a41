#include "task/trainer.h"

#include <cmath>
#include <mutex>
#include <set>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "line_fit.h"

namespace cairn::task {
namespace {

using testing::HasSubstr;

struct Ran {
  Report report;
  Params params;
  std::vector<std::string> log;  // of rank 0
};

// On so many ranks, which must all report the same.
Ran run_on(int ranks, const Task<Dot>& task, const TrainerOptions& options, const std::vector<Dot>& examples,
           const std::vector<Dot>& evaluation = {}, harness::On on = harness::On::local) {
  std::vector<Ran> all(static_cast<size_t>(ranks));
  const harness::Run run = harness::on_ranks(ranks, {.on = on}, [&](comm::World& world) {
    Deployer deployer(world, {.seed = 3});
    Trainer trainer(deployer, task, line_start(), options);
    Ran& mine = all[static_cast<size_t>(world.rank())];
    mine.report = trainer.fit(examples, evaluation);
    mine.params = trainer.params();
  });
  for (const Ran& one : all) {
    EXPECT_EQ(one.report.steps, all[0].report.steps);
    for (const mesh::NamedTensor& tensor : one.params.all()) EXPECT_TRUE(tensor.tensor.equal(all[0].params[tensor.name]));
  }
  Ran ran = all[0];
  ran.log = run.log.at(0);
  return ran;
}

void expect_same_curve(const Ran& a, const Ran& b) {
  ASSERT_EQ(a.report.steps.size(), b.report.steps.size());
  for (size_t i = 0; i < a.report.steps.size(); ++i) {
    EXPECT_NEAR(a.report.steps[i].loss, b.report.steps[i].loss, 1e-5) << "step " << i + 1;
    EXPECT_NEAR(a.report.steps[i].gradient_norm, b.report.steps[i].gradient_norm, 1e-5);
    EXPECT_EQ(a.report.steps[i].learning_rate, b.report.steps[i].learning_rate);
  }
  for (const mesh::NamedTensor& tensor : a.params.all()) EXPECT_TRUE(at::allclose(tensor.tensor, b.params[tensor.name], 0, 1e-5));
}

// d/dw mean (w x + b - y)^2 = 2 mean r x.
TEST(Trainer, TakesTheStepThatCalculusSays) {
  const std::vector<Dot> examples = dots(12);
  const Ran ran =
      run_on(1, line_fit(), {.per_device_batch = 4, .global_batch = 12, .optimizer = "sgd", .learning_rate = 0.1, .schedule = "constant"},
             examples);
  double dw = 0, db = 0, loss = 0;
  for (const Dot& dot : examples) {
    const double r = 0.5 * dot.x + 0.25 - dot.y;
    loss += r * r / 12, dw += 2 * r * dot.x / 12, db += 2 * r / 12;
  }
  ASSERT_EQ(ran.report.steps.size(), 1u);
  EXPECT_NEAR(ran.report.steps[0].loss, loss, 1e-6);
  EXPECT_NEAR(ran.report.steps[0].gradient_norm, std::sqrt(dw * dw + db * db), 1e-6);
  EXPECT_NEAR(ran.params["w"].item<double>(), 0.5 - 0.1 * dw, 1e-6);
  EXPECT_NEAR(ran.params["b"].item<double>(), 0.25 - 0.1 * db, 1e-6);
}

// The sheet's seventh item, with random numbers in the loss.
TEST(Trainer, GivesOneCurveForAnyNumberOfRanks) {
  Task<Dot> task = line_fit();
  task.loss = [](const base::Random& random, const Params& params, const Batch& batch, bool training) {
    const at::Tensor noise = training ? 0.1 * normal(random, {batch.samples()}) : at::zeros({batch.samples()});
    return (line_at(params, batch) + noise - batch.field("y")).square().mean();
  };
  const TrainerOptions options{
      .per_device_batch = 2, .global_batch = 12, .epochs = 3, .learning_rate = 0.05, .max_grad_norm = 0.5, .warmup_ratio = 0.25};
  const std::vector<Dot> examples = dots(41), evaluation = dots(7, 2);
  const Ran one = run_on(1, task, options, examples, evaluation);
  EXPECT_EQ(one.report.steps.size(), 9u);
  for (const int ranks : {2, 3, 6}) {
    const Ran more = run_on(ranks, task, options, examples, evaluation, ranks == 2 ? harness::On::net : harness::On::local);
    expect_same_curve(one, more);
    for (size_t i = 0; i < 3; ++i)
      for (const char* name : {"loss", "eval_loss", "worst"})
        EXPECT_NEAR(one.report.epochs[i].metrics.at(name), more.report.epochs[i].metrics.at(name), 1e-5) << name;
  }
}

TEST(Trainer, SharesOutStateByZero) {
  TrainerOptions options{.per_device_batch = 2, .global_batch = 12, .epochs = 2, .learning_rate = 0.05};
  const std::vector<Dot> examples = dots(24);
  const Ran one = run_on(1, line_fit(), options, examples);
  for (const int zero : {1, 2}) {
    options.zero = zero;
    expect_same_curve(one, run_on(3, line_fit(), options, examples));
  }
}

// Means of unequal weights, dealt out in any way: the weighted mean over the whole batch.
TEST(Trainer, WeighsSumsByWhatTheyAreOver) {
  Task<Dot> task = line_fit();
  task.loss = [](const base::Random&, const Params& params, const Batch& batch, bool) -> Loss {
    return {((line_at(params, batch) - batch.field("y")).square() * batch.field("weight")).sum(), batch.field("weight").sum()};
  };
  const std::vector<Dot> examples = dots(6);
  double sum = 0, weight = 0;
  for (const Dot& dot : examples) sum += dot.weight * std::pow(0.5 * dot.x + 0.25 - dot.y, 2), weight += dot.weight;
  const Ran one = run_on(1, task, {.per_device_batch = 6, .learning_rate = 0.1, .schedule = "constant"}, examples, examples);
  EXPECT_NEAR(one.report.steps[0].loss, sum / weight, 1e-6);
  for (const int ranks : {1, 2, 3}) {
    const Ran more =
        run_on(ranks, task, {.per_device_batch = 1, .global_batch = 6, .learning_rate = 0.1, .schedule = "constant"}, examples, examples);
    expect_same_curve(one, more);
    EXPECT_NEAR(one.report.epochs[0].metrics.at("eval_loss"), more.report.epochs[0].metrics.at("eval_loss"), 1e-5);
  }
}

TEST(Trainer, ShufflesByEpochAndLeavesOutTheRemainderWithAWarning) {
  std::mutex mutex;
  const auto watched = [&](std::vector<int64_t>& into) {
    Task<Dot> task = line_fit();
    task.loss = [&](const base::Random&, const Params& params, const Batch& batch, bool) {
      const std::lock_guard lock(mutex);
      const at::Tensor ids = batch.ids.clone();
      into.insert(into.end(), ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
      return (line_at(params, batch) - batch.field("y")).square().mean();
    };
    return task;
  };
  const TrainerOptions options{.per_device_batch = 2, .global_batch = 4, .epochs = 2, .sanity_check = false};
  std::vector<int64_t> one, two;
  const Ran ran = run_on(1, watched(one), options, dots(11));
  run_on(2, watched(two), options, dots(11));
  EXPECT_EQ(ran.report.dropped, 3);
  EXPECT_THAT(ran.log, testing::Contains(HasSubstr("warn: model: 3 of 11 examples do not fill a global batch of 4 and are left out")));
  ASSERT_EQ(one.size(), 16u);
  const std::set<int64_t> first(one.begin(), one.begin() + 8), second(one.begin() + 8, one.end());
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(second.size(), 8u);
  EXPECT_NE(std::vector(one.begin(), one.begin() + 8), std::vector(one.begin() + 8, one.end()));
  for (size_t step = 0; step < 4; ++step)  // in a step, ranks may come in any order
    EXPECT_EQ(std::set(one.begin() + 4 * step, one.begin() + 4 * (step + 1)),
              std::set(two.begin() + 4 * step, two.begin() + 4 * (step + 1)));
}

TEST(Trainer, FollowsItsSchedule) {
  const auto rates = [](const TrainerOptions& options) {
    std::vector<double> found;
    for (const StepReport& step : run_on(1, line_fit(), options, dots(20)).report.steps) found.push_back(step.learning_rate);
    return found;
  };
  const std::vector<double> linear = rates({.per_device_batch = 2, .learning_rate = 0.1, .warmup_steps = 2});
  for (size_t i = 0; i < 10; ++i) {
    const double step = static_cast<double>(i) + 1;
    EXPECT_NEAR(linear[i], step < 2 ? 0.05 * step : 0.1 * (10 - step) / 8, 1e-12) << step;
  }
  const std::vector<double> cosine = rates({.per_device_batch = 2, .learning_rate = 0.1, .schedule = "cosine", .warmup_ratio = 0.2});
  EXPECT_NEAR(cosine[5], 0.05, 1e-12);
  EXPECT_NEAR(cosine[9], 0, 1e-12);
  const std::vector<double> longer = rates({.per_device_batch = 2, .learning_rate = 0.1, .steps_total = 20});
  EXPECT_NEAR(longer[9], 0.05, 1e-12);
}

// Several trainers under one deployer; calls of fit go on where the last one stopped, and a reset forgets what the optimizer knew.
TEST(Trainer, GoesOnWithTheNextCallAndStartsAfreshWhenReset) {
  harness::on_ranks(2, [](comm::World& world) {
    Deployer deployer(world);
    const TrainerOptions options{
        .name = "a", .per_device_batch = 3, .epochs = 2, .learning_rate = 0.05, .schedule = "constant", .sanity_check = false};
    TrainerOptions once = options;
    once.name = "b", once.epochs = 4;
    Trainer a(deployer, line_fit(), line_start(), options), b(deployer, line_fit(), line_start(), once);
    Report twice = a.fit(dots(12));
    for (const StepReport& step : a.fit(dots(12)).steps) twice.steps.push_back(step);
    EXPECT_EQ(twice.steps, b.fit(dots(12)).steps);
    EXPECT_EQ(a.epochs_done(), 4);
    EXPECT_EQ(a.steps_done(), 8);
    // A step over all examples: the same again after a reset, whatever was learned between.
    TrainerOptions whole = options;
    whole.name = "c", whole.epochs = 1, whole.per_device_batch = 6;
    Trainer c(deployer, line_fit(), line_start(), whole);
    c.fit(dots(12));
    const Params first = c.params();
    c.fit(dots(12));
    c.reset(line_start());
    EXPECT_TRUE(c.params()["w"].equal(line_start()["w"]));
    c.fit(dots(12));
    EXPECT_TRUE(at::allclose(c.params()["w"], first["w"], 0, 1e-6));
    EXPECT_EQ(c.steps_done(), 3);
  });
}

// What stands in for the gradient: here three times it, and one more after the sum.
TEST(TrainStep, TakesThePlaceOfTheGradient) {
  Task<Dot> task = line_fit();
  task.train_step.part = [](const base::Random&, const Params& params, const Batch& batch) -> TrainStep::Part {
    const Params own = repeated(params, 1).map([](const at::Tensor& t) { return t[0]; });
    const at::Tensor sum = (line_at(own, batch) - batch.field("y")).square().sum();
    return {gradients(sum, own).map([](const at::Tensor& t) { return 3 * t; }), sum.detach() / static_cast<double>(batch.samples())};
  };
  task.train_step.finish = [](const base::Random& random, const Params& sums) {
    return sums.map([&](const at::Tensor& t) { return t + 12 * normal(random, t.sizes()); });
  };
  const std::vector<Dot> examples = dots(12);
  const TrainerOptions options{.per_device_batch = 2, .global_batch = 12, .optimizer = "sgd", .learning_rate = 1, .schedule = "constant"};
  const Ran plain = run_on(1, line_fit(), options, examples), one = run_on(1, task, options, examples),
            three = run_on(3, task, options, examples);
  expect_same_curve(one, three);
  const double step = 0.5 - plain.params["w"].item<double>(), noise = (0.5 - one.params["w"].item<double>()) - 3 * step;
  EXPECT_GT(std::abs(noise), 1e-3);
  EXPECT_NEAR((0.25 - one.params["b"].item<double>()) - 3 * (0.25 - plain.params["b"].item<double>()), noise,
              1e-4);  // one normal number, once
}

TEST(Trainer, LeavesTheGeneratorOfAtenAsTheCheckFoundIt) {
  Task<Dot> task = line_fit();
  task.loss = [](const base::Random&, const Params& params, const Batch& batch, bool) {
    return (line_at(params, batch) + 0.1 * at::randn({batch.samples()}) - batch.field("y")).square().mean();
  };
  const auto losses = [&](bool check) {
    const at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    at::Generator(generator).set_current_seed(5);
    Report report;
    harness::on_ranks(1, [&](comm::World& world) {
      Deployer deployer(world);
      report = Trainer(deployer, task, line_start(), {.sanity_check = check}).fit(dots(16));
    });
    return report.steps;
  };
  EXPECT_EQ(losses(true), losses(false));
}

}  // namespace
}  // namespace cairn::task
