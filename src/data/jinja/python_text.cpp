#include "data/jinja/python_text.h"

#include <algorithm>
#include <string.h>

#include <utf8proc.h>

#include "data/tokenizer/characters.h"

namespace cairn::data::jinja {
namespace {

void append_code(std::string& text, uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

enum class Case { upper, lower };

// Simple case mapping of one character, plus the one common character whose capital is two (ß).
void append_cased(std::string& into, std::string_view text, size_t at, const Character& character, Case wanted) {
  if (character.code == kNoCharacter) {
    into += text.substr(at, character.bytes);
  } else if (wanted == Case::upper && character.code == 0xDF) {
    into += "SS";
  } else {
    const auto code = static_cast<utf8proc_int32_t>(character.code);
    append_code(into, static_cast<uint32_t>(wanted == Case::upper ? utf8proc_toupper(code) : utf8proc_tolower(code)));
  }
}

bool is_cased(uint32_t code) {
  if (code == kNoCharacter) return false;
  const auto signed_code = static_cast<utf8proc_int32_t>(code);
  return utf8proc_toupper(signed_code) != signed_code || utf8proc_tolower(signed_code) != signed_code;
}

std::string in_case(std::string_view text, Case wanted) {
  std::string made;
  made.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    append_cased(made, text, at, character, wanted);
    at += character.bytes;
  }
  return made;
}

bool is_stripped(std::string_view text, size_t at, const Character& character, std::optional<std::string_view> characters) {
  if (!characters) return is_space(character.code);
  return find_text(*characters, text.substr(at, character.bytes)) != std::string_view::npos;
}

bool is_line_end(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

}  // namespace

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t at = 0; at < text.size(); at += characters.back().size()) characters.push_back(text.substr(at, character_at(text, at).bytes));
  return characters;
}

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) ++count;
  return count;
}

size_t byte_of_character(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += character_at(text, at).bytes;
  return at;
}

bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> characters) {
  while (ends.left && !text.empty()) {
    const Character first = character_at(text, 0);
    if (!is_stripped(text, 0, first, characters)) break;
    text.remove_prefix(first.bytes);
  }
  while (ends.right && !text.empty()) {
    const Character last = character_before(text, text.size());
    if (!is_stripped(text, text.size() - last.bytes, last, characters)) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

std::vector<std::string_view> split_words(std::string_view text, int64_t splits, bool from_right) {
  std::vector<std::string_view> words;
  const auto skip = [&](bool spaces) {  // from the end that words are taken from: how many bytes are (not) white space
    size_t bytes = 0;
    while (bytes < text.size()) {
      const Character character = from_right ? character_before(text, text.size() - bytes) : character_at(text, bytes);
      if (is_space(character.code) != spaces) break;
      bytes += character.bytes;
    }
    return bytes;
  };
  const auto cut = [&](size_t bytes) {
    const std::string_view part = from_right ? text.substr(text.size() - bytes) : text.substr(0, bytes);
    from_right ? text.remove_suffix(bytes) : text.remove_prefix(bytes);
    return part;
  };
  for (cut(skip(true)); !text.empty(); cut(skip(true))) {
    if (splits >= 0 && static_cast<int64_t>(words.size()) == splits) {
      words.push_back(text);  // the rest keeps the whitespace at its far end
      break;
    }
    words.push_back(cut(skip(false)));
  }
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t splits, bool from_right) {
  std::vector<size_t> places;
  if (from_right && splits >= 0) {  // the same search on the mirror image
    const std::string mirrored(text.rbegin(), text.rend());
    places = find_all(mirrored, std::string(separator.rbegin(), separator.rend()), splits);
    for (size_t& at : places) at = text.size() - at - separator.size();
    std::reverse(places.begin(), places.end());
  } else {
    places = find_all(text, separator, splits);
  }
  std::vector<std::string_view> parts;
  size_t from = 0;
  for (const size_t at : places) {
    parts.push_back(text.substr(from, at - from));
    from = at + separator.size();
  }
  parts.push_back(text.substr(from));
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    size_t next = at + character.bytes;
    if (is_line_end(character.code)) {
      if (character.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(from, (keep_ends ? next : at) - from));
      from = next;
    }
    at = next;
  }
  if (from < text.size()) lines.push_back(text.substr(from));
  return lines;
}

std::string justified(std::string_view text, int64_t width, std::string_view fill, Ends sides) {
  const int64_t missing = std::max<int64_t>(0, std::max<int64_t>(0, width) - character_count(text));
  const int64_t before = !sides.left ? 0 : sides.right ? missing / 2 + (missing & width & 1) : missing;
  std::string made;
  for (int64_t i = 0; i < before; ++i) made += fill;
  made += text;
  for (int64_t i = before; i < missing; ++i) made += fill;
  return made;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_text(std::string_view text, std::string_view part) {  // the same search on the mirror image
  const std::string mirrored(text.rbegin(), text.rend());
  const size_t at = find_text(mirrored, std::string(part.rbegin(), part.rend()));
  return at == std::string_view::npos ? at : text.size() - at - part.size();
}

std::vector<size_t> find_all(std::string_view text, std::string_view part, int64_t at_most) {
  std::vector<size_t> places;
  for (size_t at = 0; at_most < 0 || static_cast<int64_t>(places.size()) < at_most; at += part.size()) {
    at = find_text(text, part, at);
    if (at == std::string_view::npos) break;
    places.push_back(at);
  }
  return places;
}

std::string upper(std::string_view text) { return in_case(text, Case::upper); }
std::string lower(std::string_view text) { return in_case(text, Case::lower); }

std::string swap_case(std::string_view text) {
  std::string made;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    std::string upper_case;
    append_cased(upper_case, text, at, character, Case::upper);
    if (upper_case == text.substr(at, character.bytes))
      append_cased(made, text, at, character, Case::lower);
    else
      made += upper_case;
    at += character.bytes;
  }
  return made;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = character_at(text, 0).bytes;
  const std::string capital = text.substr(0, first) == "ß" ? "Ss" : upper(text.substr(0, first));
  return capital + lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string made;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    append_cased(made, text, at, character, inside ? Case::lower : Case::upper);
    inside = is_cased(character.code);
    at += character.bytes;
  }
  return made;
}

bool is_lower(std::string_view text) { return lower(text) == text && upper(text) != text; }
bool is_upper(std::string_view text) { return upper(text) == text && lower(text) != text; }
bool is_digits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; }

bool all_of_kind(std::string_view text, uint8_t kinds) {
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if ((character.kinds & kinds) == 0) return false;
    at += character.bytes;
  }
  return !text.empty();
}

}  // namespace cairn::data::jinja
