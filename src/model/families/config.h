#pragma once
#include <string>

#include "model/decoder/shape.h"

namespace cairn::model {

// The config.json of a Hugging Face directory: complete enough that `transformers` opens it. `dtype`: of the tensors beside it.
std::string format_config(const DecoderShape& shape, const std::string& dtype = "float32");

// And back. `file` names it in messages. Refuses, naming the key: families that are not in families.cpp, sizes that cannot work, and
// whatever would make another function of the same weights (an activation, a rope_scaling or a quantization that is not known here).
// Keys that change nothing are passed over.
DecoderShape parse_config(const std::string& json, const std::string& file);

}  // namespace cairn::model
