#include "proofs/timed_model.h"

#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"

namespace cairn::study {
namespace {

std::string value(int i) { return fmt::format("value.{}", i); }

class TimedBlock final : public model::Block {
 public:
  TimedBlock(comm::World& world, const TimedBlocks& of, int index, std::vector<mesh::ParamId> parameters)
      : world_(world), of_(of), index_(index), parameters_(std::move(parameters)) {
    card_.name = fmt::format("layers.{}.timed", index);
    card_.reads = {value(index)};
    card_.writes = {value(index + 1)};
    if (of.stream) card_.streams = {{value(index + 1), model::TokenLayout::replicated}};
    card_.operations = {{.name = "wait", .parameters = parameters_, .flops_per_token = 1}};
  }

  const model::Card& card() const override { return card_; }

  void forward(model::Values& values, model::Saved* keep, const model::Call& call) const override {
    const at::Tensor& in = values.get(value(index_));
    fetch(call);
    gather(call);
    wait(of_.forward_s);
    reduce(call);
    if (keep) keep->put("in", in);
    values.put(value(index_ + 1), at::zeros({in.size(0), of_.boundary_elements}));
  }

  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& call) const override {
    const at::Tensor dout = gradients.take(value(index_ + 1));
    fetch(call);
    gather(call);
    wait(of_.input_s);
    reduce(call);
    gradients.add(value(index_), at::zeros_like(saved.get("in")));
    if (dout.size(0) != saved.get("in").size(0)) throw std::logic_error("a gradient of another micro-batch");
  }

  void backward_weight(model::Saved&& /*saved*/, mesh::Gradients& into, const model::Call& call) const override {
    wait(of_.weight_s);
    for (const mesh::ParamId& id : parameters_) into.add(id, at::zeros_like(call.weights.get(id)));
  }

  void plain(model::Values& values, const model::Call& call) const override { forward(values, nullptr, call); }

 private:
  void wait(double seconds) const {
    if (seconds <= 0) return;
    world_.timer(world_.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))).wait();
  }
  void fetch(const model::Call& call) const {
    for (const mesh::ParamId& id : parameters_) call.weights.get(id);
  }
  void gather(const model::Call& call) const {
    comm::Group* tp = call.axes.find("tp");
    if (!tp || of_.tensor_elements == 0) return;
    const at::Tensor whole = at::zeros({of_.tensor_elements}),
                     own = at::zeros({comm::even_counts(of_.tensor_elements, tp->size())[static_cast<size_t>(tp->rank())]});
    tp->all_gather(whole, own, {comm::Purpose::state, "tokens"}).wait();
  }
  void reduce(const model::Call& call) const {
    comm::Group* tp = call.axes.find("tp");
    if (!tp || of_.tensor_elements == 0) return;
    const at::Tensor whole = at::zeros({of_.tensor_elements}),
                     own = at::zeros({comm::even_counts(of_.tensor_elements, tp->size())[static_cast<size_t>(tp->rank())]});
    tp->reduce_scatter(own, whole, comm::Reduce::sum, {comm::Purpose::state, "tokens"}).wait();
  }

  comm::World& world_;
  TimedBlocks of_;
  int index_;
  std::vector<mesh::ParamId> parameters_;
  model::Card card_;
};

class TimedModel final : public model::Model {
 public:
  model::Buffers make_buffers(const at::TensorOptions& /*options*/) const override { return {}; }
};

// Nothing is learned: the loss is zero, and so is its gradient.
class TimedObjective final : public model::Objective {
 public:
  explicit TimedObjective(int blocks) : last_(value(blocks)) {}
  Separates separates() const override { return Separates::samples; }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double /*weight*/,
                         const mesh::Axes& /*axes*/) const override {
    if (gradients) gradients->add(last_, at::zeros_like(outputs.get(last_)));
    return {.sum = at::zeros({}, at::kDouble), .count = at::full({}, batch.samples(), at::kLong)};
  }

 private:
  std::string last_;
};

}  // namespace

std::unique_ptr<model::Model> make_timed_model(comm::World& world, const TimedBlocks& blocks) {
  auto model = std::make_unique<TimedModel>();
  for (int i = 0; i < blocks.blocks; ++i) {
    std::vector<mesh::ParamId> parameters;
    if (blocks.parameter_elements > 0)
      parameters.push_back(model->add(model::Parameter{.name = fmt::format("weight.{}", i), .shape = {blocks.parameter_elements}}));
    model->add(std::make_unique<TimedBlock>(world, blocks, i, std::move(parameters)));
  }
  return model;
}

std::unique_ptr<model::Objective> make_timed_objective(const TimedBlocks& blocks) {
  return std::make_unique<TimedObjective>(blocks.blocks);
}

comm::LinkModel quick_links() {
  comm::LinkModel link;
  link.latency = std::chrono::nanoseconds(100);
  link.jitter = 0;
  link.bytes_per_s = 1e15;
  return link;
}

}  // namespace cairn::study
