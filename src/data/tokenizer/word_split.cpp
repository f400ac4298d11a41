#include "data/tokenizer/word_split.h"

#include <cstdint>

#include "data/tokenizer/characters.h"

namespace cairn::data {
namespace {

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The end of the run of characters of kind `of` that begins at `from`.
size_t run_end(std::string_view text, size_t from, uint8_t of) {
  while (from < text.size()) {
    const auto lead = static_cast<uint8_t>(text[from]);
    if (lead < 0x80) {
      if (!(kAsciiKinds[lead] & of)) return from;
      ++from;
    } else {
      const Character c = wide_character_at(text, from);
      if (!(c.kinds & of)) return from;
      from += c.bytes;
    }
  }
  return from;
}

// The length of a contraction at the beginning of `text`, which begins with an apostrophe; 0: none.
size_t contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && text[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// The same, ignoring case. U+017F, the long s, folds to s.
size_t contraction_of_any_case(std::string_view text) {
  char small[3] = {'\'', 0, 0};
  for (size_t i = 1; i < 3 && i < text.size(); ++i) small[i] = text[i] >= 'A' && text[i] <= 'Z' ? text[i] + ('a' - 'A') : text[i];
  if (text.substr(1).starts_with("\xc5\xbf")) return 3;
  return contraction({small, text.size() < 3 ? text.size() : 3});
}

// `\s+(?!\S)|\s+` at the beginning of `text`: a run of whitespace leaves its last character to the word after it.
size_t space_word(std::string_view text, size_t run) {
  if (run == text.size()) return run;
  const size_t last = run - character_before(text, run).bytes;
  return last == 0 ? run : last;
}

}  // namespace

std::optional<WordPattern> known_pattern(std::string_view expression) {
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2})
    if (expression == expression_of(pattern)) return pattern;
  return std::nullopt;
}

std::string_view expression_of(WordPattern pattern) {
  return pattern == WordPattern::gpt2 ? kGpt2 : pattern == WordPattern::llama3 ? kLlama3 : kQwen2;
}

size_t first_word_gpt2(std::string_view text) {
  if (text[0] == '\'') {
    if (const size_t length = contraction(text)) return length;
  }
  const size_t start = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const Character first = character_at(text, start);
  if (!(first.kinds & Kind::space)) return run_end(text, start + first.bytes, first.kinds & (Kind::letter | Kind::number | Kind::other));
  return space_word(text, run_end(text, 0, Kind::space));
}

size_t first_word_llama3(std::string_view text, int digits_max) {
  if (text[0] == '\'') {
    if (const size_t length = contraction_of_any_case(text)) return length;
  }
  const Character first = character_at(text, 0);
  if (first.kinds & Kind::letter) return run_end(text, first.bytes, Kind::letter);
  if (first.kinds & Kind::number) {
    size_t end = first.bytes;
    for (int digits = 1; digits < digits_max && end < text.size(); ++digits) {
      const Character next = character_at(text, end);
      if (!(next.kinds & Kind::number)) break;
      end += next.bytes;
    }
    return end;
  }
  Character second;
  if (first.bytes < text.size()) second = character_at(text, first.bytes);
  if (!(first.kinds & Kind::newline) && second.kinds & Kind::letter) return run_end(text, first.bytes + second.bytes, Kind::letter);
  if (first.kinds & Kind::other || (first.code == ' ' && second.kinds & Kind::other))
    return run_end(text, run_end(text, first.bytes, Kind::other), Kind::newline);
  const size_t run = run_end(text, 0, Kind::space);
  for (size_t end = run; end > 0; --end)
    if (text[end - 1] == '\n' || text[end - 1] == '\r') return end;
  return space_word(text, run);
}

bool is_word_boundary_of(WordPattern pattern, char before, char after) {
  const auto left = static_cast<uint8_t>(before);
  if (left >= 0x80 || kAsciiKinds[left] & Kind::space) return false;
  return after == ' ' || (after == '\n' && pattern == WordPattern::gpt2);
}

}  // namespace cairn::data
