#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoder/shape.h"

namespace cairn::model {

// The names of a layer's parameters with experts, in models and in files with stacked tensors. `layer`: "model.layers.3.".
inline constexpr std::string_view kExpertBiasEnding = ".e_score_correction_bias";
struct ExpertNames {
  std::string router, bias, gate_up, down, shared, shared_gate;
};
ExpertNames expert_names(const std::string& layer);

// A stacked parameter as files with one tensor per expert have it: for each expert the matrices that follow each other in its part.
struct StackedParameter {
  std::string name;
  std::vector<std::vector<std::string>> parts;
};
std::vector<StackedParameter> stacked_parameters(const DecoderShape& shape);

// Routers that such files call otherwise: the model's name, and theirs.
std::vector<std::pair<std::string, std::string>> renamed_routers(const DecoderShape& shape);

}  // namespace cairn::model
