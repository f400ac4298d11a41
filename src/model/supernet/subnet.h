// Supernets (once-for-all networks): one set of weights holds many networks. A subnet uses a prefix of them: the first layers of each
// stage, and the first channels in the middle of each layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"

namespace cairn::model {

struct Call;

// One layer of an elastic model: a residual branch with channels in the middle, or a layer of a decoder with its MLP.
struct ElasticLayer {
  int64_t stage = 0;
  int64_t place = 0;        // in its stage, from 0
  std::string name = {};    // of its blocks: "layers.3", "stages.0.1"
  int64_t middle = 0;       // channels in the middle of the whole layer
  int64_t in = 0, out = 0;  // widths of what it reads and writes
  double flops = 0;         // of a forward pass with all channels, for one sample (one token of a decoder)
  double fixed_flops = 0;   // those of them that do not depend on the channels in the middle
};

// The layers of an elastic model in running order, stage after stage. Within a stage the first ones always run.
struct ElasticShape {
  std::vector<ElasticLayer> layers = {};
  double other_flops = 0;  // of everything that every subnet runs

  int64_t stages() const { return layers.empty() ? 0 : layers.back().stage + 1; }
  int64_t layers_of(int64_t stage) const;
};

// Which part of an elastic model a pass computes.
struct Subnet {
  std::vector<int64_t> depth = {};  // by stage: the layers that run
  std::vector<int64_t> width = {};  // by layer of the whole model: the channels in its middle, whether it runs or not
  bool operator==(const Subnet&) const = default;

  bool runs(const ElasticLayer& layer) const { return layer.place < depth[static_cast<size_t>(layer.stage)]; }
};

// The whole model as a subnet.
Subnet whole_subnet(const ElasticShape& shape);
// Of a forward pass, for one sample or token.
double flops_of(const Subnet& subnet, const ElasticShape& shape);
// "2,3,1:64,32,...": depths, then the widths of the layers that run.
std::string format_subnet(const Subnet& subnet, const ElasticShape& shape);
// The other way. Refuses what is no subnet of the shape; layers that do not run get all their channels.
Subnet parse_subnet(const std::string& text, const ElasticShape& shape);

// A layer's view of a call. Without a subnet everything runs.
bool runs_in(const Call& call, int64_t stage, int64_t place);
int64_t width_in(const Call& call, size_t layer, int64_t whole);

// The gradient of a prefix of a matrix: `value` in the upper left corner, zero elsewhere.
at::Tensor padded(const at::Tensor& value, const std::vector<int64_t>& sizes);
// Contributes dy^T x, the gradient of the upper left corner of a parameter of `sizes` [out, in].
void add_outer_prefix(mesh::Gradients& into, mesh::ParamId id, const at::Tensor& x, const at::Tensor& dy,
                      const std::vector<int64_t>& sizes);

}  // namespace cairn::model
