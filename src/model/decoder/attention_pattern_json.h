#pragma once
#include <string>

#include "base/json.h"

namespace cairn::model {

struct DecoderShape;

// The object "sparse_attention" of config.json.
base::OrderedJson format_pattern(const DecoderShape& shape);
void parse_pattern(DecoderShape& shape, const base::Json& json, const std::string& file);

}  // namespace cairn::model
