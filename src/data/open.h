// From the data.* options to a data set, for every data.kind.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/dataset.h"
#include "data/options.h"
#include "data/sample_shape.h"
#include "data/tokenizer.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

// Of pictures.
struct ImageShape {
  int64_t channels = 0;  // 0: samples are no pictures
  int64_t size = 0;      // height and width in pixels
  std::vector<std::string> class_names = {};
};

// A data set, and what a model needs to know of it.
struct OpenedData {
  std::unique_ptr<Dataset> samples = {};
  std::unique_ptr<Tokenizer> tokenizer = {};  // null where samples are not tokens
  std::vector<Stream> streams = {};           // of a weighted mixture, for the sampler
  int64_t length = 0;                         // of tokens: tokens of a sample
  int64_t features = 0;                       // of labelled examples: numbers of a sample
  int64_t classes = 0;
  SampleShape shape = {};               // of clips
  ImageShape image = {};
  std::string origin = {};              // "the built-in stories"
  uint64_t digest = 0;                  // hash of the tokens; 0 where samples are generated
  std::optional<ChatFormat> chat = {};  // how conversations became text, where there are some
};

// The same on every rank, with or without cache.
OpenedData open_data(const DataOptions& data, const CorpusOptions& options, base::Log& log);

}  // namespace cairn::data
