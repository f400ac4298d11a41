// Python's str methods on UTF-8. Characters are code points; a byte that is not UTF-8 counts as one character.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data::jinja {

std::vector<std::string_view> characters_of(std::string_view text);
int64_t character_count(std::string_view text);
size_t byte_of_character(std::string_view text, int64_t index);  // its first byte; the end of the text for an index past the last

// str.isspace, which strip, split and the whitespace control of tags use.
bool is_space(uint32_t code);

struct Ends {
  bool left = true;
  bool right = true;
};
// Removes the given characters from the ends, or whitespace where none are given.
std::string_view strip(std::string_view text, Ends ends = {}, std::optional<std::string_view> characters = std::nullopt);

// At white space; empty parts are left out. At most `splits` times, where that is not negative.
std::vector<std::string_view> split_words(std::string_view text, int64_t splits, bool from_right);
// At a separator, which is not empty.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t splits, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// The text with `fill` (one character) on the given sides up to `width` characters. On both sides as str.center does it.
std::string justified(std::string_view text, int64_t width, std::string_view fill, Ends sides);

// The first occurrence at or after `from`, or npos. Linear in the sum of the lengths.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t find_last_text(std::string_view text, std::string_view part);
std::vector<size_t> find_all(std::string_view text, std::string_view part, int64_t at_most);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string swap_case(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title: every run of alphabetic characters begins with a capital
bool is_lower(std::string_view text);      // str.islower: a character with case, and none of the other one
bool is_upper(std::string_view text);
bool is_digits(std::string_view text);                   // not empty, and 0 to 9 alone
bool all_of_kind(std::string_view text, uint8_t kinds);  // not empty, and every character has one of the data::Kind bits

}  // namespace cairn::data::jinja
