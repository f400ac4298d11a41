// A task whose gradients are known by hand: y = w x + b, squared error.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "task/trainer.h"

namespace cairn::task {

struct Dot {
  float x = 0, y = 0;
  float weight = 1;
};

inline std::vector<Dot> dots(int64_t n, uint64_t seed = 1) {
  const base::Random random(seed);
  std::vector<Dot> all;
  for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) {
    const float x = 2 * random.uniform_float(3 * i) - 1;
    all.push_back({x, 3 * x - 1 + 0.1F * random.uniform_float(3 * i + 1), 0.25F + random.uniform_float(3 * i + 2)});
  }
  return all;
}

inline Params line_start() { return {{{"w", at::full({1, 1}, 0.5)}, {"b", at::full({1}, 0.25)}}}; }

inline at::Tensor line_at(const Params& params, const Batch& batch) { return (batch.field("x") * params["w"] + params["b"]).squeeze(1); }

inline Task<Dot> line_fit() {
  Task<Dot> task;
  task.collate = [](std::span<const Dot> some) {
    std::vector<float> x, y, weight;
    for (const Dot& dot : some) x.push_back(dot.x), y.push_back(dot.y), weight.push_back(dot.weight);
    return batch_of({{"x", at::tensor(x).unsqueeze(1)}, {"y", at::tensor(y)}, {"weight", at::tensor(weight)}});
  };
  task.loss = [](const base::Random&, const Params& params, const Batch& batch, bool) {
    return (line_at(params, batch) - batch.field("y")).square().mean();
  };
  task.predict = [](const base::Random&, const Params& params, const Batch& batch) -> Outputs { return {{"y", line_at(params, batch)}}; };
  task.metric = [](std::span<const Dot> some, const Outputs& outputs) -> Metrics {
    double worst = 0;
    for (size_t i = 0; i < some.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(outputs.at("y").const_data_ptr<float>()[i]) - some[i].y));
    return {{"worst", worst}};
  };
  return task;
}

// The error's message on every rank; what it is said with on rank 0.
inline std::string refused_on(int ranks, const std::function<void(Deployer&)>& body, const DeployerOptions& options = {}) {
  const harness::Run run = harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) {
    Deployer deployer(world, options);
    body(deployer);
  });
  EXPECT_EQ(run.error_on(0).kind(), Error::Kind::bad_input);
  return run.error_on(0).what();
}

}  // namespace cairn::task
