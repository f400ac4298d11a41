// Texts as vectors: what retrieval compares, and what a teacher scores by single tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "data/retrieval/dataset.h"
#include "evaluate/evaluated_model.h"
#include "model/model.h"

namespace cairn::evaluate {

// An encoder (model::make_encoder) on one device. Borrows everything.
struct TextEncoder {
  const model::Model& model;
  const model::Weights& weights;
  model::Buffers& buffers;
  int64_t padding = 0;  // a token id

  // The value "vectors" of a batch of data::encoder_batch, on the encoder's device.
  at::Tensor run(const mesh::Batch& batch) const;
};

// The vectors of these texts, in this order: fp32 [texts, embed] on the CPU. Texts of similar length share a batch, and how they share it
// depends on their lengths alone.
at::Tensor text_vectors(const TextEncoder& encoder, const data::TokenTable& tokens, std::span<const int64_t> texts,
                        data::RetrievalPooling pooling, int64_t batch, const OnProgress& progress = {});

// The vectors of all tokens of these texts, [texts, longest, embed] on the encoder's device, and the number of tokens of each.
struct TokenVectors {
  at::Tensor vectors, lengths;
};
TokenVectors token_vectors(const TextEncoder& encoder, const data::TokenTable& tokens, std::span<const int64_t> texts);

}  // namespace cairn::evaluate
