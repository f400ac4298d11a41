#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Context.h>

#include "base/check.h"
#include "task/calls.h"
#include "task/predictor.h"

namespace cairn::task {
namespace {

// Restores the state of a random generator at the end of the scope.
class Kept {
 public:
  explicit Kept(const at::Device& device) : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~Kept() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

std::vector<std::string> check_task(const Deployer& deployer, const TaskFunctions& functions, const Params& params,
                                    const Examples& examples, int64_t batch) {
  const Kept host(at::Device(at::kCPU)), device(deployer.device());
  const base::Random random = deployer.random("task.sanity");
  std::vector<int64_t> places(static_cast<size_t>(std::min(batch, examples.count)));
  std::iota(places.begin(), places.end(), 0);
  const Batch one = collated(examples, places, deployer.device());
  const WeightedLoss loss = loss_of(functions, random, params, one, /*training=*/false);
  const double value = loss.sum.item<double>(), weight = loss.weight.item<double>();
  if (!std::isfinite(value) || !std::isfinite(weight) || !(weight > 0))
    base::fail_input(
        "loss gave a sum of {} over a weight of {} for the first {} examples before training: both must be finite, the weight above 0",
        value, weight, places.size());
  std::vector<std::string> names{"eval_loss"};
  if (!functions.predict) {
    if (examples.metric) base::fail_input("the task has a metric and no predict: a metric is of predictions");
    return names;
  }
  Outputs outputs = outputs_of(functions, random, params, one);
  for (auto& [name, tensor] : outputs) tensor = tensor.cpu();
  const auto first = static_cast<int64_t>(places.size());
  if (functions.postprocess) texts_of(functions, outputs, first);
  for (const auto& [name, found] : metrics_of(examples, first, outputs)) {
    if (name == "loss" || name == "eval_loss")
      base::fail_input("a metric is called \"{}\", as the trainer calls its own: give it another name", name);
    names.push_back(name);
  }
  return names;
}

}  // namespace cairn::task
