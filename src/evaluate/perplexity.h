#pragma once
#include <cstdint>
#include <functional>

#include "data/corpus/token_stream.h"
#include "evaluate/evaluated_model.h"

namespace cairn::evaluate {

struct PerplexityOptions {
  int64_t window = 0;         // tokens per window; 0: the model's context length
  int64_t stride = 0;         // new tokens per window after the first, the rest is context; 0: all (disjoint chunks)
  int64_t batch = 8;          // windows per batch
  int64_t documents_max = 0;  // 0: all
  bool add_prefix = true;     // false: all documents are conversations, whose template has written what stands before them
};

// Loss over texts, as sums, so that means are over all tokens.
struct TextLoss {
  int64_t documents = 0;
  int64_t conversations = 0;  // of the documents: nothing was added before them
  int64_t tokens = 0;         // scored
  int64_t bytes = 0;          // of the text of these tokens
  double loss = 0;            // sum over the tokens, in nats

  void add(const TextLoss& other);
  double mean() const;
  double perplexity() const;     // exp of the mean
  double bits_per_byte() const;  // comparable between tokenizers
};

// Refuses a window longer than the context and a stride longer than the window.
void check(const PerplexityOptions& options, const EvaluatedModel& evaluated);

// Scores every token of every document once, given the tokens before it in its document. The context of the first token is
// EvaluatedModel::text_prefix, which is put there where the document does not begin with it; without it, the first token is not scored.
// Nothing is put before a conversation: a document in which some tokens are no targets, or any where add_prefix is false. A long
// document is read in windows that advance by `stride`: the first window scores all of its tokens, later windows score only new ones, which
// have at least window - stride tokens of context. The token that ends a document is not scored; in conversations only targets are. Calls
// `on_document` for each document, in order.
TextLoss perplexity(const EvaluatedModel& evaluated, const data::TokenStream& row, const PerplexityOptions& options,
                    const std::function<void(const TextLoss& document)>& on_document = {}, const OnProgress& progress = {});

}  // namespace cairn::evaluate
