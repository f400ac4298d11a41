#pragma once
#include <memory>

#include "model/decoder/lora.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::model {

// A decoder of one of the families: grouped-query attention and an MLP per layer on a residual stream, tied or untied head; Hugging
// Face names and layouts. Reads "tokens" [batch, length], and where a batch has them "documents" (attention stays within one) and
// "positions", int64 of the same shape; writes "logits" [batch, length, vocab]. Adapters are parameters of their own, beside the layers
// they are on.
std::unique_ptr<Model> make_decoder(const DecoderShape& shape, const LoraShape& lora = {});

}  // namespace cairn::model
