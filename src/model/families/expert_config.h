#pragma once
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "model/decoder/shape.h"

namespace cairn::model {

class ConfigFields;

inline constexpr int64_t kExpertsMax = 1 << 14;  // of a layer
// Added to the model_type where biases take part in the router's choice, so that no other program takes it for the plain family.
inline constexpr std::string_view kBiasedSuffix = "_biased";

// The keys of config.json about experts, of families that have some.
void read_experts(DecoderShape& shape, const ConfigFields& config);
void write_experts(base::OrderedJson& config, const DecoderShape& shape);

}  // namespace cairn::model
