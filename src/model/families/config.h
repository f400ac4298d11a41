#pragma once
#include <string>

#include "model/decoder/shape.h"

namespace cairn::model {

// Formats the config.json of a Hugging Face directory, complete enough for `transformers`. `dtype`: of the tensors beside it.
std::string format_config(const DecoderShape& shape, const std::string& dtype = "float32");

// The inverse. `file` names it in messages. Refuses unknown families, sizes that cannot work, and keys that would make another function of
// the same weights (an unknown activation, rope scaling or quantization). Other keys are ignored.
DecoderShape parse_config(const std::string& json, const std::string& file);

}  // namespace cairn::model
