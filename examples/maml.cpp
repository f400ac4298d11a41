// Model-agnostic meta-learning (Finn et al., arXiv:1703.03400) on sinusoids: the loss takes steps of learning inside, and is differentiated
// through them. To be reached: 5-shot error at most half of that of plain pre-training on all sinusoids, tuned at its best rate.
#include <algorithm>

#include "examples/examples.h"
#include "kernels/aten.h"
#include "task/mlp.h"
#include "task/predictor.h"
#include "task/trainer.h"

namespace cairn::examples {
namespace {

constexpr int64_t kShots = 5, kQueries = 15;
constexpr double kRate = 0.01;  // of the inner steps

// y = amplitude * sin(x + phase), of which kShots points are shown.
struct Sinusoid {
  double amplitude, phase;
  base::Random points;
};

std::vector<Sinusoid> sinusoids(const base::Random& random, int64_t n) {
  std::vector<Sinusoid> all;
  for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i)
    all.push_back({0.1 + 4.9 * random.uniform(2 * i), 3.14159 * random.uniform(2 * i + 1), random.for_index(i)});
  return all;
}

at::Tensor errors(const task::Params& params, const at::Tensor& x, const at::Tensor& y) {  // [tasks]
  return (task::run_mlp(params, x / 5) - y).square().mean({1, 2});
}

// Each task's own parameters after steps of gradient descent on its shots.
task::Params adapted(const task::Params& params, const task::Batch& batch, int64_t steps, double rate) {
  const at::Tensor x = batch.field("x").narrow(1, 0, kShots), y = batch.field("y").narrow(1, 0, kShots);
  task::Params own = task::repeated(params, batch.samples());
  for (int64_t i = 0; i < steps; ++i)
    own = task::add_scaled(own, task::gradients(errors(own, x, y).sum(), own, /*differentiable=*/true), -rate);
  return own;
}

at::Tensor errors_after(const task::Params& params, const task::Batch& batch, int64_t steps, double rate) {  // [tasks]
  const at::Tensor x = batch.field("x").narrow(1, kShots, kQueries), y = batch.field("y").narrow(1, kShots, kQueries);
  return errors(adapted(params, batch, steps, rate), x, y);
}

double five_shot_error(task::Deployer& deployer, task::Task<Sinusoid> task, const task::Params& params, double rate) {
  task.predict = [rate](const base::Random&, const task::Params& at, const task::Batch& batch) -> task::Outputs {
    return {{"error", errors_after(at, batch, 5, rate)}};
  };
  const auto test = sinusoids(deployer.random("test"), 500);
  return task::Predictor(deployer, task, 25).predict(params, test).at("error").mean().item<double>();
}

}  // namespace

Outcome maml(task::Deployer& deployer, bool quick) {
  task::Task<Sinusoid> task;
  task.collate = [](std::span<const Sinusoid> tasks) {
    std::vector<at::Tensor> x, y;
    for (const Sinusoid& one : tasks) {
      x.push_back(10 * task::uniform(one.points, {kShots + kQueries, 1}) - 5);
      y.push_back(one.amplitude * at::sin(x.back() + one.phase));
    }
    return task::batch_of({{"x", at::stack(x)}, {"y", at::stack(y)}});
  };
  task::Task<Sinusoid> plain = task;
  task.loss = [](const base::Random& random, const task::Params& params, const task::Batch& batch, bool) {
    return errors_after(params, batch, /*steps=*/1 + static_cast<int64_t>(random.below(0, 5)), kRate).mean();
  };
  plain.loss = [](const base::Random&, const task::Params& params, const task::Batch& batch, bool) {
    return errors(params, batch.field("x"), batch.field("y")).mean();
  };

  const task::Params start = task::mlp({1, 40, 40, 1}, deployer.random("start"));
  const auto training = sinusoids(deployer.random("training"), quick ? 500 : 50000);
  task::Trainer meta(deployer, task, start, {.name = "maml", .per_device_batch = 25, .learning_rate = 2e-3});
  meta.fit(training);
  task::Trainer pretrained(deployer, plain, start, {.name = "plain", .per_device_batch = 25, .learning_rate = 2e-3});
  pretrained.fit(training);

  double tuned = 1e9;
  for (const double rate : {0.0, 0.001, 0.003, 0.01, 0.03})
    tuned = std::min(tuned, five_shot_error(deployer, task, pretrained.params(), rate));
  return {"5-shot squared error after 5 steps, against plain pre-training", five_shot_error(deployer, task, meta.params(), kRate), tuned,
          tuned / 2};
}

}  // namespace cairn::examples
