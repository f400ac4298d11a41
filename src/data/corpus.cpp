#include "data/corpus.h"

#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "data/bpe_tokenizer.h"
#include "data/bpe_trainer.h"
#include "data/byte_tokenizer.h"
#include "data/cache.h"
#include "data/open_tokenizer.h"
#include "data/source.h"
#include "data/tokenize.h"
#include "data/tokenizer_json.h"

namespace cairn::data {
namespace {

// A BPE is learned from this much text at most, from the beginning.
constexpr int64_t kTrainingBytes = 32 << 20;

uint64_t combine(std::initializer_list<uint64_t> parts) { return base::checksum(std::as_bytes(std::span(parts.begin(), parts.size()))); }

// Covers where documents begin and end, not only the bytes.
uint64_t hash(const Documents& documents) {
  return combine({base::checksum(documents.text), base::checksum(std::as_bytes(std::span(documents.spans)))});
}

std::unique_ptr<Tokenizer> learn_tokenizer(const Documents& documents, uint64_t text_hash, int64_t vocab, int threads, const Cache& cache) {
  const uint64_t key = combine({text_hash, static_cast<uint64_t>(vocab), static_cast<uint64_t>(kTrainingBytes)});
  if (const std::optional<std::string> json = cache.get("tokenizer", key))
    return make_bpe_tokenizer(read_tokenizer_json(*json, cache.path("tokenizer", key)));
  std::vector<std::string_view> texts;
  int64_t bytes = 0;
  for (int64_t i = 0; i < documents.size() && bytes < kTrainingBytes; ++i) {
    texts.push_back(documents[i].substr(0, kTrainingBytes - bytes));
    bytes += static_cast<int64_t>(texts.back().size());
  }
  Bpe bpe = train_bpe(texts, {.vocab = vocab, .threads = threads});
  cache.put("tokenizer", key, write_tokenizer_json(bpe));
  return make_bpe_tokenizer(std::move(bpe));
}

std::unique_ptr<Tokenizer> choose_tokenizer(const DataOptions& data, const Documents& documents, uint64_t text_hash, int threads,
                                            const Cache& cache) {
  if (!data.tokenizer_file.empty()) return read_tokenizer(data.tokenizer_file);
  if (data.tokenizer == "bytes") return make_byte_tokenizer();
  if (data.tokenizer == "bpe") return learn_tokenizer(documents, text_hash, data.vocab, threads, cache);
  base::fail_input("data.tokenizer = {}: must be bytes or bpe", data.tokenizer);
}

// The cached ids, unless they do not fit the tokenizer.
std::optional<std::vector<int32_t>> cached_tokens(const Cache& cache, uint64_t key, int64_t vocab) {
  const std::optional<std::string> bytes = cache.get("tokens", key);
  if (!bytes || bytes->size() % sizeof(int32_t) != 0) return std::nullopt;
  std::vector<int32_t> tokens(bytes->size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes->data(), bytes->size());
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab) return std::nullopt;
  return tokens;
}

}  // namespace

Corpus open_corpus(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  const Documents documents =
      data.path.empty() ? tell_stories(static_cast<uint64_t>(data.stories_seed), data.stories_bytes) : read_text(data.path);
  const uint64_t text_hash = hash(documents);
  const Cache cache(options.cache_folder, log);
  std::unique_ptr<Tokenizer> tokenizer = choose_tokenizer(data, documents, text_hash, options.threads, cache);
  const uint64_t key = combine({text_hash, hash(*tokenizer)});
  std::optional<std::vector<int32_t>> tokens = cached_tokens(cache, key, tokenizer->vocab_size());
  const bool from_cache = tokens.has_value();
  if (!from_cache) {
    tokens = tokenize(documents, *tokenizer, {.threads = options.threads, .progress = options.progress});
    cache.put("tokens", key, std::string_view(reinterpret_cast<const char*>(tokens->data()), tokens->size() * sizeof(int32_t)));
  }
  const WindowOptions windows{.length = data.length, .held_out_fraction = options.held_out_fraction, .padding = tokenizer->end_of_text()};
  TokenSet samples(std::move(*tokens), windows, documents.origin);
  return {std::move(tokenizer), std::move(samples), documents.origin, static_cast<int64_t>(documents.text.size()), from_cache};
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path) { return open_tokenizer(path); }

}  // namespace cairn::data
