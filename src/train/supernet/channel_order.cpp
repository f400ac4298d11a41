#include "train/supernet/channel_order.h"

#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "train/build/batches.h"
#include "train/job.h"
#include "train/state/surgery.h"
#include "train/supernet/shrinking.h"

namespace cairn::train {
namespace {

class ChannelOrder final : public BetweenSteps {
 public:
  ChannelOrder(Job& job, comm::World& world)
      : job_(job), world_(world), shape_(job.engine.model->elastic()), begins_(shrinking_begins(job.config.settings.model.supernet)) {}

  void before_step(int64_t step) override {
    if (done() || job_.batches->progress(batch_index(job_, step)) < begins_) return;
    base::Checksum sum;
    optim::Surgery surgery;
    for (const model::ElasticLayer& layer : shape_.layers) {
      const std::vector<int64_t> order = order_of(layer);
      sum.add(std::as_bytes(std::span(order)));
      for (const model::MiddleTensor& one : layer.of_middle) surgery.emplace_back(optim::permutation(one.name, one.dim, order));
    }
    operate(job_, surgery);
    state_.select(0, 0).fill_(1);
    state_.select(0, 1).fill_(static_cast<int64_t>(sum.value()));
    if (world_.rank() == 0) world_.log().info("step {}: the channels of {} layers are sorted by importance", step, shape_.layers.size());
  }

  // Whether it has happened, and a checksum of the order.
  mesh::NamedTensors state() override { return {{"supernet.channel_order", state_}}; }

 private:
  bool done() const { return state_.const_data_ptr<int64_t>()[0] != 0; }

  std::vector<int64_t> order_of(const model::ElasticLayer& layer) const {
    const std::vector<model::Parameter>& all = job_.engine.model->parameters();
    const auto found = std::ranges::find(all, layer.projection.name, &model::Parameter::name);
    const at::Tensor weight = whole_parameter(job_, static_cast<size_t>(found - all.begin()));
    const at::Tensor importance = weight.abs().sum(1 - layer.projection.dim);
    const at::Tensor order = std::get<1>(importance.cpu().sort(/*stable=*/true, /*dim=*/0, /*descending=*/true)).contiguous();
    return {order.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>() + order.numel()};
  }

  Job& job_;
  comm::World& world_;
  model::ElasticShape shape_;
  double begins_;
  at::Tensor state_ = at::zeros({2}, at::kLong);
};

}  // namespace

std::unique_ptr<BetweenSteps> make_channel_order(Job& job, comm::World& world) {
  const model::SupernetOptions& options = job.config.settings.model.supernet;
  const bool sorts = options.any() && options.reorganise && options.method != model::ShrinkMethod::early;
  return sorts ? std::make_unique<ChannelOrder>(job, world) : nullptr;
}

}  // namespace cairn::train
