// Supernets (once-for-all networks): one set of weights holds many networks. A subnet uses a prefix of them: the first layers of each
// stage, and the first channels in the middle of each layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::model {

// The channels in the middle of a layer that reads `in`: a multiple of 8.
int64_t middle_channels(int64_t in, int64_t expand);

// A parameter, or a running buffer, that has the channels in the middle of a layer along a dim.
struct MiddleTensor {
  std::string name;
  int64_t dim = 0;
};

// One layer of an elastic model: a residual branch with channels in the middle, or a layer of a decoder with its MLP.
struct ElasticLayer {
  int64_t stage = 0;
  int64_t place = 0;         // in its stage, from 0
  std::string name = {};     // of its blocks: "layers.3", "stages.0.1"
  std::string tensors = {};  // what the names of its parameters begin with
  int64_t in = 0;            // channels that it reads
  int64_t middle = 0;        // channels in the middle of the whole layer
  double flops = 0;          // of a forward pass with all channels, for one sample (one token of a decoder)
  double fixed_flops = 0;    // those of them that do not depend on the channels in the middle
  std::vector<MiddleTensor> of_middle = {};
  MiddleTensor projection = {};  // reads the channels in the middle: its weights tell how important each is

  int64_t width_of(int64_t expand) const;
};

// The layers of an elastic model in running order, stage after stage. Within a stage the first ones always run. Empty: the model is not
// elastic.
struct ElasticShape {
  std::vector<ElasticLayer> layers = {};
  double other_flops = 0;  // of everything that every subnet runs
  bool one_width = false;  // all layers of a subnet have the same number of channels in the middle

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
// "2,3,1:64,32,...": depths, then the widths of the layers that run; of models with one width, "3:176".
std::string format_subnet(const Subnet& subnet, const ElasticShape& shape);
// The other way. Refuses what is no subnet of the shape; layers that do not run get all their channels.
Subnet parse_subnet(const std::string& text, const ElasticShape& shape);

}  // namespace cairn::model
