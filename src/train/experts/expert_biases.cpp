// Load balancing without a loss (model/experts/balance.h): before a step, the bias of each expert goes up or down by a constant, towards
// the mean load of the step before.
#include "train/experts/expert_biases.h"

#include <utility>
#include <vector>

#include "kernels/aten.h"
#include "model/experts/balance.h"
#include "model/model.h"
#include "train/job.h"
#include "train/state/surgery.h"

namespace cairn::train {
namespace {

class ExpertBiases final : public BetweenSteps {
 public:
  ExpertBiases(Job& job, std::vector<model::ExpertBias> biases, double rate) : job_(job), biases_(std::move(biases)), rate_(rate) {}

  void before_step(int64_t) override {
    optim::Surgery surgery;
    for (const model::ExpertBias& one : biases_) {
      const at::Tensor now = whole_parameter(job_, one.parameter);
      const at::Tensor load = job_.engine.buffers.at(one.load).to(now.device());
      surgery.emplace_back(optim::NewValues{job_.engine.model->parameters()[one.parameter].name, model::moved_biases(now, load, rate_)});
    }
    operate(job_, surgery);
  }

  // The load that the next step follows.
  mesh::NamedTensors state() override {
    mesh::NamedTensors all;
    for (const model::ExpertBias& one : biases_) all.push_back({one.load, job_.engine.buffers.at(one.load)});
    return all;
  }

 private:
  Job& job_;
  const std::vector<model::ExpertBias> biases_;
  const double rate_;
};

}  // namespace

std::unique_ptr<BetweenSteps> make_expert_biases(Job& job, comm::World&) {
  std::vector<model::ExpertBias> biases = model::expert_biases(*job.engine.model);
  if (biases.empty()) return nullptr;
  return std::make_unique<ExpertBiases>(job, std::move(biases), job.config.settings.model.moe.bias_rate);
}

}  // namespace cairn::train
