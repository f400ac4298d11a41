#include "task/network.h"

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"

namespace cairn::task {
namespace {

// Parameters by id; neighbours that a block reads as one matrix are stacked.
class Handed final : public model::Weights {
 public:
  explicit Handed(const Params& params, const model::Model& model) {
    for (const model::Parameter& parameter : model.parameters()) tensors_.push_back(params[parameter.name]);
  }
  at::Tensor get(mesh::ParamId id) const override {
    const auto first = tensors_.begin() + id.first;
    return id.count == 1 ? *first : at::cat(std::vector<at::Tensor>(first, first + id.count));
  }

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace

Network::Network(std::unique_ptr<model::Model> model, const at::Device& device)
    : model_(std::move(model)), buffers_(model_->make_buffers(at::TensorOptions().dtype(at::kFloat).device(device))) {}

Params Network::start(const base::Random& random) const {
  mesh::NamedTensors all;
  for (const model::Parameter& parameter : model_->parameters()) {
    const at::Tensor value = at::empty(parameter.shape, at::kFloat);
    model::initialize_parameter(parameter, value.view({-1}), random);
    all.push_back({parameter.name, value});
  }
  return all;
}

at::Tensor Network::run(const Params& params, const Batch& batch, const std::string& output) const {
  const Handed weights(params, *model_);
  model::Buffers buffers = buffers_;  // a block may write there
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  model::Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  for (const auto& block : model_->blocks()) block->plain(values, call);
  return values.take(output);
}

}  // namespace cairn::task
