// Cuts text into words the way GPT-2's tokenizer does, before any merge is tried.
#pragma once
#include <cstddef>
#include <string_view>

namespace cairn::data {

// The length in bytes of the first word of `text` (not empty): a contraction ('s 't 're 've 'm 'll 'd), or an optional space
// with letters, digits or other signs, or white space; a run of white space leaves its last character to the word after it.
// ASCII is classified as GPT-2 does; every byte from 0x80 counts as a letter.
size_t first_word(std::string_view text);

// Calls visit(word) for each word of `text` in order; together they are the text.
template <typename Visit>
void for_each_word(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t length = first_word(text);
    visit(text.substr(0, length));
    text.remove_prefix(length);
  }
}

// Whether a word always ends between these two neighbouring bytes, whatever stands around them.
bool is_border(char before, char after);

}  // namespace cairn::data
