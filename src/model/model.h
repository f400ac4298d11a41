#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/flat_layout.h"
#include "model/block.h"
#include "model/parameter.h"
#include "model/supernet/elastic_shape.h"

namespace cairn::base {
struct Random;
}

namespace cairn::model {

// A model: blocks and the parameters that they name, both in running order. It holds no values; these come with each call (Weights).
class Model {
 public:
  // Adds a parameter and returns its id. Parameters that kernels read as one matrix must be added one after the other.
  mesh::ParamId add(Parameter parameter);
  void add(std::unique_ptr<Block> block) { blocks_.push_back(std::move(block)); }

  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  int64_t elements() const;
  // The layout of all parameters in one flat buffer, in running order.
  mesh::FlatLayout layout() const;
  // By parameter: the contributions that its gradient receives in one pass.
  std::vector<int32_t> uses() const;

  // New buffers with their initial values (rotation tables, running statistics), with these options.
  virtual Buffers make_buffers(const at::TensorOptions& options) const = 0;
  // Whether decoding may run several sequences at the same position in one call, each with its row of the KV cache.
  virtual bool supports_batched_decoding() const { return true; }
  // The positions of its residual stream for each sample, where samples are no sequences of tokens (patches of pictures); 0: as the batch
  // says.
  virtual int64_t positions() const { return 0; }
  // The loss terms of its blocks (LossTerms), which runs report beside the objective's loss.
  virtual std::vector<std::string> loss_terms() const { return {}; }
  // Ends a step of training: buffers that follow what passes counted change, or forget it where the step was skipped. `sum` sums a tensor
  // in place over the ranks that step together. Returns metrics of the step, the same on all of these.
  virtual std::vector<std::pair<std::string, double>> end_step(Buffers& /*buffers*/, bool /*skipped*/,
                                                               const std::function<void(const at::Tensor&)>& /*sum*/) const {
    return {};
  }
  // The layers and channels that a subnet may leave out; empty: none.
  virtual ElasticShape elastic() const { return {}; }
  // The config.json of a Hugging Face directory; empty where the model has none.
  virtual std::string config_json() const { return {}; }
  virtual ~Model() = default;

 private:
  std::vector<Parameter> parameters_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

class Objective;
// The names of Losses::measures in runs: those of the objective, then the loss terms of the model's blocks.
std::vector<std::string> measures_of(const Model& model, const Objective& objective);

// Weights in one flat buffer with the layout Model::layout(): the ordinary case.
class FlatWeights final : public Weights {
 public:
  // `placements`: by parameter; empty: every parameter is whole on this rank.
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

// Writes the initial values of one whole parameter into a flat buffer on any device.
void initialize_parameter(const Parameter& parameter, const at::Tensor& flat, const base::Random& random);

// Writes the initial values of all parameters. Each element is a function of seed, parameter name and index, whatever the layout.
void initialize_parameters(const Model& model, const at::Tensor& flat, const base::Random& random);

}  // namespace cairn::model
