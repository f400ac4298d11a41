#include "data/open.h"

#include <utility>

#include "data/corpus/source_tokens.h"
#include "data/samples/spirals.h"

namespace cairn::data {

OpenedData open_data(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  if (const DataNeeds& needs = data.needs(); !needs.tokens)
    return {.samples = make_spirals({.classes = needs.classes, .held_out_fraction = options.held_out_fraction}),
            .features = needs.features,
            .classes = needs.classes,
            .origin = needs.built_in};
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
