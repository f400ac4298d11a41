#pragma once
#include "base/json.h"
#include "model/decoder/shape.h"

namespace cairn::model {

class ConfigFields;

inline constexpr int64_t kExpertsMax = 1 << 14;  // of a layer

// The keys of config.json about experts, of families that have some.
void read_experts(DecoderShape& shape, const ConfigFields& config);
void write_experts(base::OrderedJson& config, const DecoderShape& shape);

}  // namespace cairn::model
