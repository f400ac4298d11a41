#pragma once
#include <memory>

#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::model {

class ServedAdapters;
class WeightFormRule;

// A decoder of one of the families: grouped-query attention and an MLP per layer on a residual stream, a tied or untied head, with Hugging
// Face names and layouts. Reads "tokens" [batch, length] and, where a batch has them, "documents" (attention stays within a document) and
// "positions", int64 of the same shape. Writes "logits" [batch, length, vocab]. Adapters are parameters of their own.
// `forms`: what the weights of linear layers are made of (weight_form.h); null: plain parameters.
std::unique_ptr<Model> make_decoder(const DecoderShape& shape, const AdapterShape& adapter = {},
                                    std::shared_ptr<const WeightFormRule> forms = nullptr);

// A decoder for generation in which each row of a batch may have another adapter (served_adapters.h).
std::unique_ptr<Model> make_serving_decoder(const DecoderShape& shape, std::shared_ptr<const ServedAdapters> adapters);

// The same without a head: an encoder of texts. Where a batch has the field "pool", float [batch, vectors, length], it writes "vectors"
// [batch, vectors, embed] in fp32: for each row of `pool` the sum of the hidden states after the final norm with these weights. Without the
// field they are the hidden states of all tokens, [batch, length, embed].
std::unique_ptr<Model> make_encoder(const DecoderShape& shape, const AdapterShape& adapter = {},
                                    std::shared_ptr<const WeightFormRule> forms = nullptr);

}  // namespace cairn::model
