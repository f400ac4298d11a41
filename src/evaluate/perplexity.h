#pragma once
#include <cstdint>
#include <functional>

#include "data/corpus/token_stream.h"
#include "evaluate/evaluated_model.h"

namespace cairn::evaluate {

struct PerplexityOptions {
  int64_t window = 0;  // tokens read at once; 0: as many as the model reads
  int64_t stride = 0;  // tokens counted in each window after the first, the rest of it is context; 0: all, so that windows are chunks
  int64_t batch = 8;   // windows read together
  int64_t documents_max = 0;  // 0: all
};

// What a model makes of texts: sums, so that a mean is one over all tokens.
struct TextLoss {
  int64_t documents = 0;
  int64_t tokens = 0;  // that were counted
  int64_t bytes = 0;   // of the text that they stand for
  double loss = 0;     // the sum over the tokens, in nats

  void add(const TextLoss& other);
  double mean() const;
  double perplexity() const;     // exp of the mean
  double bits_per_byte() const;  // comparable between tokenizers
};

// Refuses a window that the model cannot read and a stride longer than the window.
void check(const PerplexityOptions& options, const EvaluatedModel& evaluated);

// Every token of every document is counted once, after what stands before it in its own document. The first is judged after
// EvaluatedModel::before or begin; where there is neither it is not counted. A long document is read in windows, each `stride` tokens after
// the one before: the first counts all of its tokens, the others those that are new, which have more than window - stride tokens before
// them. The token that ends a document is not counted, and of conversations only what is asked for. `on_document` hears of each document,
// in order.
TextLoss perplexity(const EvaluatedModel& evaluated, const data::TokenStream& row, const PerplexityOptions& options,
                    const std::function<void(const TextLoss& document)>& on_document = {}, const OnProgress& progress = {});

}  // namespace cairn::evaluate
