#pragma once
#include <string>

#include "base/json.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The rotary part of a config.json: rope_theta and rope_scaling, or rope_parameters, which newer versions of `transformers` write
// instead. Reading refuses types that are not known here.
void read_rope(DecoderShape& shape, const base::Json& config, const std::string& file);
void write_rope(base::OrderedJson& config, const DecoderShape& shape);

}  // namespace cairn::model
