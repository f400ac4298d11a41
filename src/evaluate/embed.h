// Vectors of documents: hidden states after the final norm, pooled over a document's tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "base/enum_names.h"
#include "data/selection/pool.h"
#include "mesh/batch.h"

namespace cairn::evaluate {

// How the states h_1 .. h_T of a document become one: sum of i h_i / sum of i, their mean, or h_T.
enum class Pooling { weighted_mean, mean, last };
inline constexpr base::EnumName<Pooling> kPoolingNames[] = {
    {Pooling::weighted_mean, "weighted_mean"}, {Pooling::mean, "mean"}, {Pooling::last, "last"}};

// What of a document is read: all of it, what stands before the first answer, the answers alone, or all up to the end of the first answer.
enum class EmbeddedText { conversation, prompt, answer, first_turn };
inline constexpr base::EnumName<EmbeddedText> kEmbeddedTextNames[] = {{EmbeddedText::conversation, "conversation"},
                                                                      {EmbeddedText::prompt, "prompt"},
                                                                      {EmbeddedText::answer, "answer"},
                                                                      {EmbeddedText::first_turn, "first_turn"}};

struct EmbedOptions {
  Pooling pooling = Pooling::weighted_mean;
  EmbeddedText text = EmbeddedText::conversation;
  int64_t max_tokens = 2048;    // of a document; the rest is not read
  int64_t batch_tokens = 4096;  // of one pass, padding included
  bool packs = false;           // several documents to a row, with attention within each; false: one to a row, beside others of its length
};

// A forward pass that ends in vectors, [rows, vectors, embed] in fp32 (model::make_encoder, parallel::ShardedEncoder). Undefined on ranks
// that do not have them.
using Encode = std::function<at::Tensor(const mesh::Batch& batch)>;

// The tokens of a document that are read. Empty: it has none of that kind.
std::vector<int64_t> embedded_tokens(const data::Pool& pool, int64_t document, const EmbedOptions& options);

// The vectors of documents first .. first + count - 1, [count, embed] fp32 on the CPU, of unit length; undefined where `encode` gives none.
// They do not depend on which documents are read together, up to rounding. Refuses documents without tokens of the kind that is read, and
// vectors that are not finite: the message lists the documents.
at::Tensor embed_documents(const data::Pool& pool, int64_t first, int64_t count, const EmbedOptions& options, at::Device device,
                           const Encode& encode);

}  // namespace cairn::evaluate
