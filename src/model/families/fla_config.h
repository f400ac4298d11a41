#pragma once
#include "base/json.h"
#include "model/decoder/shape.h"

namespace cairn::model {

class ConfigFields;

// The keys of flash-linear-attention's config.json: those of linear attention, and of softmax layers under "attn".
void read_fla(DecoderShape& shape, const ConfigFields& config);
void write_fla(base::OrderedJson& config, const DecoderShape& shape);

}  // namespace cairn::model
