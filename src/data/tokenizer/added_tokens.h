// Finds added tokens in a text before anything else looks at it.
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

// Looks for a set of tokens. The leftmost wins, the longest of those.
class AddedTokens {
 public:
  // `texts[i]` is what is looked for in place of `tokens[i].text`, which may be spelled otherwise after the rewrites.
  AddedTokens(std::vector<AddedToken> tokens, std::span<const std::string> texts);

  struct Found {
    const AddedToken* token = nullptr;  // null: there is none
    size_t begin = 0, end = 0;          // with the space that it takes along
    size_t match_end = 0;               // where to look for the next one
  };
  // The next token at or after `from`. Space that it takes along reaches back to `taken` at most. Special ones are passed over
  // where `specials` is false.
  Found next(std::string_view text, size_t from, size_t taken, bool specials) const;

  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, size_t> by_text_;
  std::array<std::vector<uint32_t>, 256> lengths_;  // of the texts that begin with this byte, the longest first
  int only_first_ = -1;                             // the byte that all of them begin with, if it is one
};

// Calls plain(text, begin) and token(added) for the parts of `text` in order.
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
