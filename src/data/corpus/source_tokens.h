// From a source to its row of tokens, through the cache.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/corpus/chunks.h"
#include "data/corpus/data_cache.h"
#include "data/corpus/source.h"
#include "data/corpus/token_stream.h"
#include "data/corpus/tokenize.h"
#include "data/tokenizer.h"

namespace cairn::data {

struct SourceTokensOptions {
  DocumentOptions document_options;
  ChunkOptions chunks;
  int threads = 1;
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // of this source
};

struct SourceTokens {
  std::shared_ptr<const TokenStream> row;
  int64_t text_bytes = 0;
  bool from_cache = true;  // nothing had to be tokenised
};

// Reads the beginning of each file and refuses what is wrong from there on, so that nobody waits for it.
void check_beginnings(const std::vector<SourceFile>& files, const DocumentOptions& document_options, const ChunkOptions& options);

// Token shards are mapped as they are; text is tokenised, or found in the cache under a hash of the files' contents, the tokenizer and
// the reading. Small files are put together, so that a folder of many becomes few entries; a large file has an entry of its own, so
// that work done before an interruption is kept. Shards that another tokenizer made are refused.
SourceTokens tokens_of(const Source& source, const Tokenizer& tokenizer, const SourceTokensOptions& options, const DataCache& cache,
                       base::Log& log);

// Distinguishes sources by content.
uint64_t content_hash(const Source& source, const DataCache& cache);

std::unique_ptr<ChunkReader> read_source(const Source& source, const ChunkOptions& options);

uint64_t combine(std::initializer_list<uint64_t> parts);

}  // namespace cairn::data
