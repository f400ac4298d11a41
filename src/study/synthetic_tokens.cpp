#include "study/synthetic_tokens.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "base/files.h"
#include "base/random.h"
#include "data/corpus/llmc_file.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::study {
namespace {

std::string token_shard(int64_t count, int64_t vocab) {
  const base::Random random = base::Random(1).for_purpose("gpu bench tokens");  // whose losses have been written down
  const base::Random follows = random.for_purpose("follows");
  std::vector<int32_t> ids(static_cast<size_t>(count));
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(i);
    const auto drawn = static_cast<int64_t>(std::pow(static_cast<double>(vocab), random.uniform(index)));  // frequency about 1 / rank
    before = i > 0 && follows.uniform(index) < 0.5 ? (7 * before + 13) % vocab : std::min(drawn, vocab - 1);
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(before);
  }
  data::TokenShard tokens;
  tokens.wide = ids;
  return data::llmc_bytes(tokens);
}

// The vocabulary: bytes, the end of text, and filler pieces that no text produces.
std::string tokenizer_of(int64_t vocab) {
  data::Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
  for (int64_t id = 256; id + 1 < vocab; ++id) bpe.pieces.push_back(fmt::format("piece{}", id));
  bpe.pieces.emplace_back("<|endoftext|>");
  bpe.added.push_back({.id = static_cast<int32_t>(vocab - 1), .text = "<|endoftext|>"});
  return data::write_tokenizer_json(bpe);
}

}  // namespace

SyntheticTokens write_synthetic_tokens(int64_t count, int64_t vocab, const std::string& folder) {
  SyntheticTokens files{.tokens = folder + "/tokens.bin", .tokenizer = folder + "/tokenizer.json"};
  base::write_atomically(files.tokens, token_shard(count, vocab));
  base::write_atomically(files.tokenizer, tokenizer_of(vocab));
  return files;
}

}  // namespace cairn::study
