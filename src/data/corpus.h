// From the data.* options to what training reads: a tokenizer and samples of text.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_format.h"
#include "data/chat/renderer.h"
#include "data/corpus/token_stream.h"
#include "data/corpus/tokenize.h"
#include "data/dataset.h"
#include "data/options.h"
#include "data/sampler.h"
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
  std::optional<Renderer> renderer = {};                         // of conversations, instead of the one data.template names
};

struct Corpus {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dataset> samples;
  std::vector<Stream> streams;                                    // of a weighted mixture: what a sampler must know; else none
  std::vector<std::shared_ptr<const TokenStream>> token_streams;  // of each source
  std::vector<std::string> origins;                               // of each source
  std::string origin;                                             // what the text is: "the built-in stories"
  int64_t text_bytes = 0;
  bool from_cache = false;              // whether the tokens were there from an earlier run
  std::optional<ChatFormat> chat = {};  // how conversations became text, where the files hold some
};

// Reads or makes the text, reads or trains the tokenizer, tokenises. The same result on every rank and with or without cache. Ranks
// that share a cache folder do the work once. Communicates with nobody.
Corpus open_corpus(const DataOptions& data, const CorpusOptions& options, base::Log& log);

// Looks at the beginning of every file that the options name and opens the tokenizer: what is wrong with them is told before anything is
// started. (What is wrong further on is found when they are read.)
void check_data(const DataOptions& data);

// The same without cutting the tokens into samples: `samples` stays null.
Corpus open_token_streams(const DataOptions& data, const CorpusOptions& options, base::Log& log);

// A tokenizer as a run saved it (tokenizer.json).
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path);

// How records are read, as the options say.
DocumentOptions document_options_of(const DataOptions& data, Renderer renderer);

// The tokenizer that the options name; null where one is learned from the text.
std::unique_ptr<Tokenizer> named_tokenizer(const DataOptions& data);

// The token ids that a model needs, known before the text is read: those of the named tokenizer, or data.vocab, which a learned tokenizer
// may stay below.
int64_t vocab_bound(const DataOptions& data);

}  // namespace cairn::data
