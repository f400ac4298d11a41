#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/gradients.h"

namespace cairn::model {

class Model;
struct Parameter;

// Which products with weights are in eight bits in passes with gradients: all three of a layer (kernels/fp8.h), those of values in e4m3,
// of gradients in e5m2. By place in the model's list of parameters. Attention, norms and sums stay as they are.
class Fp8LinearLayers {
 public:
  // How long a dim of a parameter is, by rank along tp; one number where all have it whole.
  using Lengths = std::function<std::vector<int64_t>(const Parameter& parameter, int64_t dim)>;

  // `kind`: "layers" (of blocks between embedding and head) or "all" (the head's too); `layers` as in parse_layers (decoder/wiring.h).
  // Refuses a model that has no such layers, and widths that codes cannot have.
  Fp8LinearLayers(const Model& model, const std::string& kind, const std::string& layers, const Lengths& lengths);

  bool of(mesh::ParamId id) const { return of_[static_cast<size_t>(id.first)]; }

 private:
  std::vector<bool> of_;
};

}  // namespace cairn::model
