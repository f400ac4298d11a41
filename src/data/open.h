// From the data.* options to what training reads, whatever kind of data it is.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/dataset.h"
#include "data/options.h"
#include "data/tokenizer.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

// Samples and what a model must know of them.
struct OpenedData {
  std::unique_ptr<Dataset> samples = {};
  std::unique_ptr<Tokenizer> tokenizer = {};  // null where the data are not text
  std::vector<Stream> streams = {};           // of a weighted mixture, for the sampler
  int64_t length = 0;                         // tokens of a sample, of text
  int64_t features = 0;                       // numbers of a sample, of labelled examples
  int64_t classes = 0;
  std::string origin = {};              // "the built-in stories"
  uint64_t digest = 0;                  // of the tokens that the samples are made of; 0 where they are made up
  std::optional<ChatFormat> chat = {};  // how conversations became text, where there are some
};

// The same on every rank, with or without cache. `data.kind` says what: text, preference or spirals.
OpenedData open_data(const DataOptions& data, const CorpusOptions& options, base::Log& log);

}  // namespace cairn::data
