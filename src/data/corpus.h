// From the data.* options to a tokenizer and tokenized samples.
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
class Stop;
}  // namespace cairn::base

namespace cairn::data {

struct CorpusOptions {
  double held_out_fraction = 0.0;  // eval.fraction
  std::string cache_folder = {};   // empty: nothing is cached between runs
  int threads = 1;
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // of tokenizing; may be empty
  std::optional<Renderer> renderer = {};                         // of conversations; overrides data.template
  bool hash_pool = false;                                        // sets Corpus::pool_digest; data.subset always does
  const base::Stop* stop = nullptr;                              // ends the work with Error::Kind::cancelled; may be null
  uint64_t seed = 1;                                             // train.seed, for samples that training draws parts of
};

struct Corpus {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dataset> samples;
  std::vector<Stream> streams;                                    // of a weighted mixture, for the sampler; else empty
  std::vector<std::shared_ptr<const TokenStream>> token_streams;  // of each source
  std::vector<std::string> origins;                               // of each source
  std::vector<bool> conversations;                                // of each source: whether its files hold conversations
  std::string origin;                                             // for errors and logs: "the built-in stories"
  int64_t text_bytes = 0;
  bool from_cache = false;              // no text had to be tokenized
  std::optional<ChatFormat> chat = {};  // how conversations became text, where the files hold conversations
  uint64_t pool_digest = 0;             // of the documents (selection/pool.h), where it was asked for
};

// Reads or generates the text, reads or trains the tokenizer, tokenizes. The result is the same on every rank and with or without cache.
// Ranks that share a cache folder do the work once. Does not communicate.
Corpus open_corpus(const DataOptions& data, const CorpusOptions& options, base::Log& log);

// Reads the beginning of every file that the options name and opens the tokenizer, so that errors there are reported before anything
// starts. Errors further into a file are found when it is read.
void check_data(const DataOptions& data);

// open_corpus without making samples: `samples` stays null.
Corpus open_token_streams(const DataOptions& data, const CorpusOptions& options, base::Log& log);

// The tokenizer that a run saved (tokenizer.json).
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path);

// How records become documents, as the options say.
DocumentOptions document_options_of(const DataOptions& data, Renderer renderer);

// The tokenizer that the options name; null where one is learned from the text.
std::unique_ptr<Tokenizer> named_tokenizer(const DataOptions& data);

// The token ids that a model needs, known before the text is read: those of the named tokenizer, or data.vocab, which a learned tokenizer
// may stay below.
int64_t vocab_bound(const DataOptions& data);

}  // namespace cairn::data
