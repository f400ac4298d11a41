#pragma once
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/IListRef.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {

// A model of odd sizes with three layers and two parameters outside of them; each island is drawn towards points of its own.
struct ToyModel {
  std::vector<FullParameter> whole{{"embed", 4}, {"layers.0.weight", 5}, {"layers.1.weight", 3}, {"layers.2.weight", 7}, {"head", 2}};
  mesh::NamedTensors parameters;

  ToyModel() {
    const base::Random random = base::Random(7).for_purpose("start");
    for (size_t p = 0; p < whole.size(); ++p) {
      at::Tensor values = at::empty({whole[p].elements}, at::kFloat);
      for (int64_t i = 0; i < whole[p].elements; ++i)
        values.mutable_data_ptr<float>()[i] = random.for_index(p).normal(static_cast<uint64_t>(i));
      parameters.push_back({whole[p].name, values});
    }
  }

  // One inner step of plain SGD: a tenth of the way to where this island is drawn at this step.
  void step(int island, int64_t number) {
    const base::Random random = base::Random(11).for_index(static_cast<uint64_t>(island)).for_index(static_cast<uint64_t>(number));
    for (size_t p = 0; p < parameters.size(); ++p) {
      float* values = parameters[p].tensor.mutable_data_ptr<float>();
      for (int64_t i = 0; i < whole[p].elements; ++i)
        values[i] -= 0.1F * (values[i] - random.for_index(p).normal(static_cast<uint64_t>(i)));
    }
  }

  at::Tensor flat() const {
    std::vector<at::Tensor> all;
    for (const mesh::NamedTensor& one : parameters) all.push_back(one.tensor);
    return at::cat(all);
  }
};

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : tensors) all.push_back(one.view({-1}));
  return at::cat(all);
}

// What one island has at the end.
struct ToyEnd {
  at::Tensor own, global_model;
};

// Trains each island with the rule; steps from `from` + 1 to `to`. `before` is called with the rule before the first
// step, and `after` after each.
struct ToyRun {
  SyncOptions options;
  int64_t steps = 0;
  bool finish = false;
  std::function<void(comm::World&, Sync&, ToyModel&, int64_t step)> after = {};
};

inline ToyEnd train_toy(comm::World& world, const ToyRun& run) {
  ToyModel model;
  const std::unique_ptr<Sync> rule = make_sync(run.options, {.replica_group = world.everyone(),
                                                             .model_group = world.alone(),
                                                             .parameters = model.parameters,
                                                             .gradients = {},
                                                             .model = model.whole,
                                                             .steps = run.steps,
                                                             .seed = 3});
  rule->begin(0);
  for (int64_t step = 1; step <= run.steps; ++step) {
    model.step(world.rank(), step);
    rule->after_step({.step = step, .tokens = 10 + world.rank(), .learning_rate = 0.1}).wait();
    if (run.after) run.after(world, *rule, model, step);
  }
  if (run.finish) rule->finish();
  return {model.flat().clone(), rule->global_parameters().empty() ? at::Tensor() : flat(rule->global_parameters()).clone()};
}

inline std::vector<ToyEnd> train_toys(int islands, const ToyRun& run) {
  std::vector<ToyEnd> ends(static_cast<size_t>(islands));
  harness::on_ranks(islands, [&](comm::World& world) { ends[static_cast<size_t>(world.rank())] = train_toy(world, run); });
  return ends;
}

inline double furthest(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

}  // namespace cairn::sync
