#pragma once
#include <cstdint>
#include <string>

#include "base/json.h"
#include "model/decoder/shape.h"
#include "model/families/config_fields.h"

namespace cairn::model {

// config.json of ViTForImageClassification, as `transformers` writes it.
void read_vit(DecoderShape& shape, const ConfigFields& config);
void write_vit(base::OrderedJson& config, const DecoderShape& shape);

// preprocessor_config.json: pictures become what the model was trained on, with values from -1 to 1.
std::string format_preprocessor(int64_t size);

}  // namespace cairn::model
