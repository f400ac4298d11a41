#pragma once
#include <string>

#include "model/decoder/shape.h"

namespace cairn::model {

// Formats the config.json of a Hugging Face directory, complete enough for `transformers`. `dtype`: of the tensors beside it.
std::string format_config(const DecoderShape& shape, const std::string& dtype = "float32");

// The inverse. `file` names it in messages. Refuses unknown families, sizes that cannot work, and keys that would make another function of
// the same weights (an unknown activation, rope scaling or quantization). Other keys are kept in DecoderShape::other_fields, and dropout
// too.
DecoderShape parse_config(const std::string& json, const std::string& file);

// The dropout that a config.json asks for and Cairn does not apply: "attn_pdrop = 0.1, embd_pdrop = 0.1"; empty: none.
std::string requested_dropout(const DecoderShape& shape);

}  // namespace cairn::model
