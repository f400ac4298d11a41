// The value of a byte-level byte-pair encoding: its pieces and its merges.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

// Joins two pieces standing side by side into one. The earlier in the list, the sooner it is applied.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const Merge&) const = default;
};

// A token that is matched in the text as it stands, before words are cut.
struct SpecialToken {
  int32_t id = 0;
  std::string text;
  bool operator==(const SpecialToken&) const = default;
};

struct Bpe {
  std::vector<std::string> pieces;  // raw bytes of each id
  std::vector<Merge> merges;
  std::vector<SpecialToken> specials;  // kEndOfText is one of them; their texts are also their pieces
  bool words = true;                   // false: text is not cut into words first
  bool operator==(const Bpe&) const = default;
};

}  // namespace cairn::data
