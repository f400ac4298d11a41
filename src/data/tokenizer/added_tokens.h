// Finds added tokens (special tokens, user-defined tokens) in a text, before normalizer and pre-tokenizer run.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// A set of tokens to find. The leftmost match wins; of several at one place, the longest. Immutable.
class AddedTokens {
 public:
  // `texts[i]` is the spelling to find for tokens[i]: its text, normalized where the token is matched after the normalizer.
  AddedTokens(std::vector<AddedToken> tokens, std::span<const std::string> texts);

  struct Found {
    const AddedToken* token = nullptr;  // null: no match
    size_t begin = 0, end = 0;          // including whitespace that lstrip and rstrip absorb
    size_t match_end = 0;               // where the search for the next match starts
  };
  // The next token at or after `from`. Absorbed whitespace reaches back to `taken` at most. Special tokens are ignored where `specials` is
  // false.
  Found next(std::string_view text, size_t from, size_t taken, bool specials) const;

  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, size_t> by_text_;
  std::array<std::vector<uint32_t>, 256> lengths_;  // of the texts that begin with this byte, longest first
  int only_first_ = -1;                             // the byte that all texts begin with, if there is one: memchr finds it
};

// Calls plain(text, begin) for text between tokens and token(added) for tokens, in order.
template <typename Plain, typename Token>
void for_each_part(std::string_view text, const AddedTokens& tokens, bool specials, Plain&& plain, Token&& token) {
  size_t taken = 0;
  if (!tokens.empty()) {
    for (AddedTokens::Found found = tokens.next(text, 0, 0, specials); found.token;
         found = tokens.next(text, found.match_end, taken, specials)) {
      if (found.begin > taken) plain(text.substr(taken, found.begin - taken), taken);
      token(*found.token);
      taken = found.end;
    }
  }
  if (taken < text.size()) plain(text.substr(taken), taken);
}

}  // namespace cairn::data
