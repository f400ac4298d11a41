#pragma once
#include "base/json.h"
#include "model/decoder/shape.h"
#include "model/families/config_fields.h"

namespace cairn::model {

// config.json of ViTForImageClassification, as `transformers` writes it.
void read_vit(DecoderShape& shape, const ConfigFields& config);
void write_vit(base::OrderedJson& config, const DecoderShape& shape);

}  // namespace cairn::model
