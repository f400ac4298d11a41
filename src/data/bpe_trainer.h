// Learns the merges of a byte-level byte-pair encoding from text.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "data/bpe.h"

namespace cairn::data {

// Ids 0 .. 255 are the bytes, then come the merges in the order learned, and kEndOfText last: `vocab` ids in all, fewer if no
// pair is left that occurs twice. Always merges the most frequent pair; ties go to the smaller left id, then the smaller right
// id, so equal texts give equal merges. Pairs never span words (word_split.h). `vocab` is at least 257.
Bpe train_bpe(std::span<const std::string_view> texts, int64_t vocab);

}  // namespace cairn::data
