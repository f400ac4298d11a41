// From a source to its tokens, through the cache.
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
  std::shared_ptr<const TokenStream> stream;
  int64_t text_bytes = 0;
  bool from_cache = true;  // everything came from the cache
};

// Reads the beginning of each file, so that a file in a wrong format is refused before long work starts.
void check_beginnings(const std::vector<SourceFile>& files, const DocumentOptions& document_options, const ChunkOptions& options);

// Token shards are mapped as they are. Text is tokenized, or found in the cache under a hash of the files' contents, the tokenizer and the
// document options. Small files share a cache entry, so that a folder of many files becomes few entries; a large file has its own, so that
// an interruption loses little. Shards made with another tokenizer are refused.
SourceTokens tokens_of(const Source& source, const Tokenizer& tokenizer, const SourceTokensOptions& options, const DataCache& cache,
                       base::Log& log);

// A hash of the source's content.
uint64_t content_hash(const Source& source, const DataCache& cache);

std::unique_ptr<ChunkReader> read_source(const Source& source, const ChunkOptions& options);

uint64_t combine(std::initializer_list<uint64_t> parts);

}  // namespace cairn::data
