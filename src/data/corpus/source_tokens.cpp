#include "data/corpus/source_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/text.h"
#include "data/corpus/llmc_file.h"

namespace cairn::data {
namespace {

constexpr uint64_t kVersion = 2;  // of what tokenising does: a change makes all cached tokens stale
constexpr int64_t kGroupBytes = 64 << 20;

// Groups of files that share a cache entry: neighbours, up to kGroupBytes together.
std::vector<std::vector<SourceFile>> groups_of(const std::vector<SourceFile>& files) {
  std::vector<std::vector<SourceFile>> groups;
  int64_t bytes = 0;
  for (const SourceFile& file : files) {
    const bool fits = !groups.empty() && !file.holds_tokens() && !groups.back().back().holds_tokens() && bytes + file.bytes <= kGroupBytes;
    if (!fits) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(file);
    bytes += file.bytes;
  }
  return groups;
}

TokenShard open_shard(const SourceFile& file, const Tokenizer& tokenizer, uint64_t tokenizer_hash) {
  if (file.format == Format::llmc) return open_llmc_file(file.path, tokenizer.vocab_size(), tokenizer.end_of_text());
  TokenShard tokens = open_token_file(file.path);
  if (tokens.facts.tokenizer != tokenizer_hash)
    base::fail_input(
        "{}: its tokens were made by another tokenizer ({:016x}, not {:016x}); set data.tokenizer_file to the one it was made with",
        file.path, tokens.facts.tokenizer, tokenizer_hash);
  return tokens;
}

uint64_t hash_of(const std::vector<SourceFile>& files, const DataCache& cache) {
  uint64_t sum = 0;
  for (const SourceFile& file : files) sum = combine({sum, static_cast<uint64_t>(file.format), cache.content_hash(file.path)});
  return sum;
}

// Covers the borders of documents, not only the bytes.
uint64_t hash_of(const Documents& documents) {
  return combine({base::checksum(documents.text), base::checksum(std::as_bytes(std::span(documents.spans)))});
}

int64_t bytes_of(const std::vector<SourceFile>& files) {
  int64_t sum = 0;
  for (const SourceFile& file : files) sum += file.bytes;
  return sum;
}

// Tokenizes the groups of files of one source, one after the other.
class SourceTokenizer {
 public:
  SourceTokenizer(const Source& source, const Tokenizer& tokenizer, const SourceTokensOptions& options, const DataCache& cache,
                  base::Log& log)
      : source_(source),
        tokenizer_(tokenizer),
        tokenizer_hash_(hash(tokenizer)),
        options_(options),
        chunks_(chunk_options_for(tokenizer, options.chunks)),
        cache_(cache),
        log_(log) {}

  SourceTokens run() {
    if (source_.in_memory) {
      make(hash_of(*source_.in_memory), source_.bytes(), [&] { return make_chunk_reader(*source_.in_memory, chunks_); });
    }
    for (const std::vector<SourceFile>& group : groups_of(source_.files)) {
      if (group[0].holds_tokens()) {
        tokens_.push_back(open_shard(group[0], tokenizer_, tokenizer_hash_));
      } else {
        const auto open = [&] { return make_chunk_reader(group, chunks_); };
        check_beginnings({group[0]}, options_.document_options, chunks_);
        make(hash_of(group, cache_), bytes_of(group), open);
      }
      done_ += bytes_of(group);
    }
    result_.stream = std::make_shared<const TokenStream>(std::move(tokens_));
    return std::move(result_);
  }

 private:
  template <typename Open>
  void make(uint64_t content, int64_t bytes, const Open& open) {
    uint64_t key = combine({kVersion, content, tokenizer_hash_, base::checksum(options_.document_options.identity()),
                            static_cast<uint64_t>(options_.chunks.line_bytes)});
    if (const std::vector<int32_t> begin = tokenizer_.begin_ids(); !begin.empty())
      key = combine({key, base::checksum(std::as_bytes(std::span(begin)))});
    BadLines bad;
    const DataCache::Found found = cache_.tokens(key, tokenizer_.vocab_size(), [&](TokenWriter& writer) {
      TokenizeOptions how{.threads = options_.threads, .bytes = bytes};
      if (options_.progress) how.progress = [&](int64_t now, int64_t) { options_.progress(done_ + now, source_.bytes()); };
      const std::unique_ptr<ChunkReader> reader = open();
      bad = tokenize(*reader, tokenizer_, options_.document_options, writer, how);
      return TokenFacts{.tokenizer = tokenizer_hash_, .text_bytes = bytes, .bad_lines = bad.count};
    });
    if (found.made && bad.count > 0) log_.warn("{}: {}", source_.origin, bad.summary());
    if (!found.made && found.tokens.facts.bad_lines > 0)
      log_.warn("{}: {} {} skipped when it was tokenised", source_.origin, base::plural(found.tokens.facts.bad_lines, "bad line"),
                found.tokens.facts.bad_lines == 1 ? "was" : "were");
    result_.from_cache = result_.from_cache && !found.made;
    result_.text_bytes += found.tokens.facts.text_bytes;
    if (found.tokens.size() > 0) tokens_.push_back(found.tokens);
  }

  const Source& source_;
  const Tokenizer& tokenizer_;
  uint64_t tokenizer_hash_;  // computed once: it covers the whole vocabulary
  const SourceTokensOptions& options_;
  ChunkOptions chunks_;
  const DataCache& cache_;
  base::Log& log_;
  std::vector<TokenShard> tokens_;
  int64_t done_ = 0;
  SourceTokens result_;
};

}  // namespace

void check_beginnings(const std::vector<SourceFile>& files, const DocumentOptions& document_options, const ChunkOptions& options) {
  constexpr size_t kFilesMax = 64;
  Chunk chunk;
  std::vector<Document> documents;
  BadLines bad;
  for (size_t i = 0; i < std::min(files.size(), kFilesMax); ++i) {
    if (files[i].holds_tokens()) continue;
    const std::unique_ptr<ChunkReader> reader = make_chunk_reader({files[i]}, options);
    if (reader->next(chunk)) documents_of(chunk, document_options, documents, bad);
    documents.clear();
  }
}

uint64_t combine(std::initializer_list<uint64_t> parts) { return base::checksum(std::as_bytes(std::span(parts.begin(), parts.size()))); }

uint64_t content_hash(const Source& source, const DataCache& cache) {
  return source.in_memory ? hash_of(*source.in_memory) : hash_of(source.files, cache);
}

std::unique_ptr<ChunkReader> read_source(const Source& source, const ChunkOptions& options) {
  if (source.in_memory) return make_chunk_reader(*source.in_memory, options);
  std::vector<SourceFile> files;
  std::copy_if(source.files.begin(), source.files.end(), std::back_inserter(files),
               [](const SourceFile& file) { return !file.holds_tokens(); });
  return make_chunk_reader(std::move(files), options);
}

SourceTokens tokens_of(const Source& source, const Tokenizer& tokenizer, const SourceTokensOptions& options, const DataCache& cache,
                       base::Log& log) {
  return SourceTokenizer(source, tokenizer, options, cache, log).run();
}

}  // namespace cairn::data
