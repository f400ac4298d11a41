// From the data.* options to what training reads: a tokenizer and its samples.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "data/options.h"
#include "data/token_set.h"
#include "data/tokenizer.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

struct CorpusOptions {
  double held_out_fraction = 0.0;  // eval.fraction
  std::string cache_folder = {};   // empty: nothing is kept between runs
  int threads = 1;
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // of tokenising; may be empty
};

struct Corpus {
  std::unique_ptr<Tokenizer> tokenizer;
  TokenSet samples;
  std::string origin;  // what the text is: "the built-in stories"
  int64_t text_bytes = 0;
  bool from_cache = false;  // whether the tokens were there from an earlier run
};

// Reads or makes the text, reads or trains the tokenizer, tokenises. The same result on every rank and with or without cache.
Corpus open_corpus(const DataOptions& data, const CorpusOptions& options, base::Log& log);

// A tokenizer as a run saved it (tokenizer.json).
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path);

}  // namespace cairn::data
