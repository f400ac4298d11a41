// Tokenized documents: the file format of the cache and of shards that `cairn data tokenize` writes, and its view in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"

namespace cairn::data {

inline constexpr std::string_view kTokenFileMagic = "cairntk1";

struct TokenFacts {
  uint64_t tokenizer = 0;  // hash of the tokenizer; 0: unknown
  uint64_t key = 0;        // cache key: hash of everything they were made from; 0: unknown
  int64_t vocab = 0;       // all ids are below
  int64_t text_bytes = 0;  // of the text they were made from
  int64_t bad_lines = 0;   // skipped
  bool operator==(const TokenFacts&) const = default;
};

// Token ids of documents one after the other. A view that keeps its memory alive; cheap to copy; immutable.
struct TokenShard {
  // Exactly one of the two is used.
  std::span<const uint16_t> narrow = {};
  std::span<const int32_t> wide = {};
  std::span<const uint64_t> begins = {};   // first token of each document, ascending from 0
  std::span<const uint64_t> targets = {};  // one bit per token: it is a training target; empty: all are
  TokenFacts facts = {};
  std::shared_ptr<const void> memory = {};

  int64_t size() const { return static_cast<int64_t>(narrow.empty() ? wide.size() : narrow.size()); }
  int64_t documents() const { return static_cast<int64_t>(begins.size()); }
};

// Whether `head`, the beginning of a file, is that of a token file.
bool is_token_file(std::string_view head);

// Reads the bytes of a token file (8-byte aligned), which `memory` keeps alive. Checks sizes, order, checksum and that ids are below vocab.
// Throws bad_input that names `origin`.
TokenShard read_tokens(std::span<const std::byte> bytes, std::shared_ptr<const void> memory, const std::string& origin);
// The same for a file, which is mapped.
TokenShard open_token_file(const std::string& path);

// Writes a token file to a sink as tokens arrive. Only 8 bytes per document and 1 bit per token (if some token is no target) stay in memory
// until the end. Layout, little-endian: magic; ids of 2 bytes (vocab up to 65,536) or 4; padding to 8; begins, 8 bytes each; target bits in
// 8-byte words; a footer with counts, facts and the checksum of everything before it.
class TokenWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  TokenWriter(Sink sink, int64_t vocab);

  // `ends`: positions in `tokens` where documents end (the last document may continue in the next call). `targets`: one byte per token, or
  // empty: all are targets.
  void add(std::span<const int32_t> tokens, std::span<const int64_t> ends, std::span<const uint8_t> targets);
  void finish(const TokenFacts& facts);  // once, last; ends an open document and fills in facts.vocab
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(begins_.size()); }

 private:
  void put(std::span<const std::byte> bytes);

  Sink sink_;
  int64_t vocab_;
  base::Checksum sum_;
  int64_t bytes_ = 0;
  int64_t tokens_ = 0;
  bool inside_ = false;  // a document has begun and not ended
  std::vector<uint64_t> begins_;
  std::vector<uint64_t> target_words_;
  bool masked_ = false;
  std::vector<uint16_t> narrow_;  // reused
};

}  // namespace cairn::data
