// Splits text into words by the three patterns that nearly all byte-level tokenizers use. Hand-written scanners, equal to the expressions.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace cairn::data {

// gpt2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// llama3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// qwen2:  as llama3, with each number on its own (\p{N})
enum class WordPattern { gpt2, llama3, qwen2 };

// The pattern with this regular expression (as tokenizer.json files spell it), if it is one of these.
std::optional<WordPattern> known_pattern(std::string_view expression);
// The regular expression of a pattern, as tokenizer.json files have it.
std::string_view expression_of(WordPattern pattern);

// The length in bytes of the first word of `text` (not empty). A byte that is not part of well-formed UTF-8 counts as a character
// of its own that is no letter, number or space.
size_t first_word_gpt2(std::string_view text);
size_t first_word_llama3(std::string_view text, int digits_max);

inline size_t first_word(WordPattern pattern, std::string_view text) {
  if (pattern == WordPattern::gpt2) return first_word_gpt2(text);
  return first_word_llama3(text, pattern == WordPattern::llama3 ? 3 : 1);
}

// Calls visit(word) for each word of `text` in order; together they are the text.
template <typename Visit>
void for_each_word(WordPattern pattern, std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t length = first_word(pattern, text);
    visit(text.substr(0, length));
    text.remove_prefix(length);
  }
}

// Whether a word of `pattern` always ends between these two neighbouring bytes, whatever stands around them.
bool is_word_boundary_of(WordPattern pattern, char before, char after);

}  // namespace cairn::data
