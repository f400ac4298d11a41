#include "data/open.h"

#include <utility>

#include "data/corpus/source_tokens.h"
#include "data/samples/spirals.h"

namespace cairn::data {

OpenedData open_data(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  if (data.kind == "spirals") {
    const SpiralOptions spirals{.held_out_fraction = options.held_out_fraction};
    return {.samples = make_spirals(spirals), .features = 2, .classes = spirals.classes, .origin = "the built-in spirals"};
  }
  Corpus corpus = open_corpus(data, options, log);
  uint64_t all = 0;
  for (const auto& row : corpus.token_streams) all = combine({all, digest(*row)});
  return {.samples = std::move(corpus.samples),
          .tokenizer = std::move(corpus.tokenizer),
          .streams = std::move(corpus.streams),
          .length = data.length,
          .origin = std::move(corpus.origin),
          .digest = all,
          .chat = std::move(corpus.chat)};
}

}  // namespace cairn::data
