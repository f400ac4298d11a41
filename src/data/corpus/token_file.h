// Token ids with their documents: what a source is once it has been tokenised, in memory, in a cache or as a shard on its own.
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
  uint64_t tokenizer = 0;  // hash of the tokenizer that made them; 0: not known
  uint64_t key = 0;        // hash of all they were made from; 0: not known
  int64_t vocab = 0;       // all ids are below
  int64_t text_bytes = 0;  // of the text they were made from
  int64_t bad_lines = 0;   // that were left out
  bool operator==(const TokenFacts&) const = default;
};

// Token ids of documents one after the other. A view that keeps what it looks at alive; cheap to copy; immutable.
struct TokenShard {
  // Exactly one of the two is used.
  std::span<const uint16_t> narrow = {};
  std::span<const int32_t> wide = {};
  std::span<const uint64_t> begins = {};   // where each document begins, ascending from 0; it lasts until the next begins
  std::span<const uint64_t> targets = {};  // one bit for each token: may be asked for; empty: all may
  TokenFacts facts = {};
  std::shared_ptr<const void> memory = {};

  int64_t size() const { return static_cast<int64_t>(narrow.empty() ? wide.size() : narrow.size()); }
  int64_t documents() const { return static_cast<int64_t>(begins.size()); }
};

// Whether a file that begins so is one of ours.
bool is_token_file(std::string_view head);

// Reads the bytes of a token file, which `memory` keeps alive (8-byte aligned). Everything is checked: sizes, order, checksum, ids below
// vocab. Throws bad_input that names `origin`.
TokenShard read_tokens(std::span<const std::byte> bytes, std::shared_ptr<const void> memory, const std::string& origin);
// The same of a file, mapped.
TokenShard open_token_file(const std::string& path);

// Makes the bytes of a token file, handing them on as they come: 8 bytes a document and 1 bit a token (if any is no target) wait for
// the end. The layout: magic; ids of 2 bytes (vocab up to 65,536) or 4; padding to 8; begins, 8 bytes each; target bits in 8-byte
// words; a footer with counts, facts and the checksum of all before it. Little-endian.
class TokenWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  TokenWriter(Sink sink, int64_t vocab);

  // `ends`: where in `tokens` documents end (the last may go on). `targets`: one byte for each token, or none: all are targets.
  void add(std::span<const int32_t> tokens, std::span<const int64_t> ends, std::span<const uint8_t> targets);
  void finish(const TokenFacts& facts);  // once, last; `vocab` and a document that still goes on are seen to here
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
