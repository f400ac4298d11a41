#pragma once
#include <memory>
#include <string>
#include <vector>

#include "mesh/flat_layout.h"
#include "model/block.h"
#include "model/parameter.h"

namespace cairn::base {
struct Random;
}

namespace cairn::model {

// What is trained: blocks in running order and the parameters they name, in running order too. Holds no values; those come with each call.
class Model {
 public:
  // Adds a parameter and returns its id. Parameters that kernels read as one matrix are added one after the other.
  mesh::ParamId add(Parameter parameter);
  void add(std::unique_ptr<Block> block) { blocks_.push_back(std::move(block)); }

  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  int64_t elements() const;
  // All parameters in one buffer, in running order.
  mesh::FlatLayout layout() const;
  // Contributions that each parameter's gradient receives in one pass.
  std::vector<int32_t> uses() const;

  // Buffers that do not depend on training, made on the device the weights are on.
  virtual Buffers make_buffers(const at::TensorOptions& options) const = 0;
  // Whether sequences that stand at the same position may go through one call, each with its row of a cache.
  virtual bool supports_batched_decoding() const { return true; }
  // "config.json" of a Hugging Face directory; empty where there is no such thing.
  virtual std::string config_json() const { return {}; }
  virtual ~Model() = default;

 private:
  std::vector<Parameter> parameters_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

// Weights that lie in one flat buffer, as Model::layout() says. The ordinary case.
class FlatWeights final : public Weights {
 public:
  // `placements`: by place in the model; empty: every parameter is here whole.
  FlatWeights(mesh::FlatLayout layout, at::Tensor flat, std::vector<mesh::Placement> placements = {})
      : layout_(std::move(layout)), flat_(std::move(flat)), placements_(std::move(placements)) {}
  at::Tensor get(mesh::ParamId id) const override { return layout_.view(flat_, id); }
  const mesh::Placement& placement(mesh::ParamId id) const override {
    return placements_.empty() ? Weights::placement(id) : placements_[static_cast<size_t>(id.first)];
  }
  const at::Tensor& flat() const { return flat_; }
  const mesh::FlatLayout& layout() const { return layout_; }

 private:
  mesh::FlatLayout layout_;
  at::Tensor flat_;
  std::vector<mesh::Placement> placements_;
};

// Starting values of one parameter, all of it, into a flat buffer on any device.
void initialize_parameter(const Parameter& parameter, const at::Tensor& flat, const base::Random& random);

// Starting values into a flat buffer on any device: each element is a function of seed, parameter name and index in the parameter.
void initialize_parameters(const Model& model, const at::Tensor& flat, const base::Random& random);

}  // namespace cairn::model
