// Finds special tokens in a text before anything else looks at it.
#pragma once
#include <span>
#include <string_view>

#include "data/bpe.h"

namespace cairn::data {

// Where the next special token begins, and which; `token` is null and `begin` the text's size if there is none. The leftmost wins,
// the longest of those.
struct NextSpecial {
  size_t begin = 0;
  const SpecialToken* token = nullptr;
};

inline NextSpecial next_special(std::string_view text, std::span<const SpecialToken> specials) {
  NextSpecial best{text.size(), nullptr};
  for (const SpecialToken& token : specials) {
    const size_t at = text.find(token.text);
    if (at == std::string_view::npos || at > best.begin) continue;
    if (at < best.begin || !best.token || token.text.size() > best.token->text.size()) best = {at, &token};
  }
  return best;
}

// Calls plain(text) and special(id) for the parts of `text` in order.
template <typename Plain, typename Special>
void for_each_part(std::string_view text, std::span<const SpecialToken> specials, Plain&& plain, Special&& special) {
  while (!text.empty()) {
    const NextSpecial next = next_special(text, specials);
    if (next.begin > 0) plain(text.substr(0, next.begin));
    if (!next.token) return;
    special(next.token->id);
    text.remove_prefix(next.begin + next.token->text.size());
  }
}

}  // namespace cairn::data
