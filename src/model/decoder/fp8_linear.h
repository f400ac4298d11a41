#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/gradients.h"

namespace cairn::model {

class Model;
struct Parameter;

// Which linear layers compute in fp8 in passes with gradients: all three GEMMs of a layer, values in e4m3 and gradients in e5m2
// (kernels/fp8.h). Attention, norms and accumulation keep their precision.
class Fp8LinearLayers {
 public:
  // The size of a parameter's dim on each rank along tp; one number where it is not sharded.
  using Lengths = std::function<std::vector<int64_t>(const Parameter& parameter, int64_t dim)>;

  // `kind`: "layers" (those between embedding and head) or "all" (the head too); `layers` as in parse_layers (decoder/wiring.h). Refuses a
  // model without such layers, and widths that are not multiples of 16.
  Fp8LinearLayers(const Model& model, const std::string& kind, const std::string& layers, const Lengths& lengths);

  bool of(mesh::ParamId id) const { return of_[static_cast<size_t>(id.first)]; }

 private:
  std::vector<bool> of_;
};

}  // namespace cairn::model
