// Learns the merges of a byte-level byte-pair encoding from text.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {

struct BpeTraining {
  int64_t vocab = 4096;                     // number of ids, including 256 bytes and the specials
  WordPattern pattern = WordPattern::gpt2;  // pairs never span two words
  int threads = 1;                          // that count words; the result does not depend on it
  std::vector<std::string> specials = {std::string(kEndOfText)};
};

// Ids 0 .. 255 are the bytes, then come the merges in the order learned, and the specials last: `vocab` ids in all, fewer if no
// pair is left that occurs twice. Always merges the most frequent pair; ties go to the smaller left id, then the smaller right
// id, so equal texts give equal merges. (The `tokenizers` library does the same, but numbers the bytes otherwise: ties differ.)
Bpe train_bpe(std::span<const std::string_view> texts, const BpeTraining& training);

}  // namespace cairn::data
