#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "data/tokenizer/characters.h"

namespace cairn::data {
namespace {

bool is_word_before(std::string_view text, size_t at) { return at > 0 && character_before(text, at).kinds & Kind::word; }
bool is_word_at(std::string_view text, size_t at) { return at < text.size() && character_at(text, at).kinds & Kind::word; }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, std::span<const std::string> texts)
    : tokens_(std::move(tokens)), texts_(texts.begin(), texts.end()) {
  CAIRN_CHECK(tokens_.size() == texts_.size(), "{} tokens, {} texts", tokens_.size(), texts_.size());
  std::array<std::set<uint32_t>, 256> lengths;
  std::set<int> firsts;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i].empty()) continue;
    by_text_.insert_or_assign(texts_[i], i);
    const auto first = static_cast<uint8_t>(texts_[i][0]);
    lengths[first].insert(static_cast<uint32_t>(texts_[i].size()));
    firsts.insert(first);
  }
  for (size_t byte = 0; byte < lengths.size(); ++byte) lengths_[byte].assign(lengths[byte].rbegin(), lengths[byte].rend());
  if (firsts.size() == 1) only_first_ = *firsts.begin();
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at, size_t& length) const {
  for (const uint32_t bytes : lengths_[static_cast<uint8_t>(text[at])]) {
    if (bytes > text.size() - at) continue;
    const auto found = by_text_.find(text.substr(at, bytes));
    if (found == by_text_.end()) continue;
    length = bytes;
    return &tokens_[found->second];
  }
  return nullptr;
}

AddedTokens::Found AddedTokens::next(std::string_view text, size_t from, size_t taken, bool specials) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (only_first_ >= 0) {
      const void* hit = std::memchr(text.data() + at, only_first_, text.size() - at);
      if (!hit) return {};
      at = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    }
    size_t length = 0;
    const AddedToken* token = longest_at(text, at, length);
    if (!token) continue;
    const size_t match_end = at + length;
    const bool alone = !token->single_word || (!is_word_before(text, at) && !is_word_at(text, match_end));
    if ((token->special && !specials) || !alone) {
      at = match_end - 1;  // as the `tokenizers` library does: a rejected match is not searched again
      continue;
    }
    Found found{token, at, match_end, match_end};
    while (token->left_strip && found.begin > taken) {
      const Character before = character_before(text, found.begin);
      if (!(before.kinds & Kind::space)) break;
      found.begin -= before.bytes;
    }
    found.begin = std::max(found.begin, taken);
    while (token->right_strip && found.end < text.size()) {
      const Character after = character_at(text, found.end);
      if (!(after.kinds & Kind::space)) break;
      found.end += after.bytes;
    }
    return found;
  }
  return {};
}

}  // namespace cairn::data
