#pragma once
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::tidy {

// One file of the checkout: its path from the root, and its text. Rules are pure functions of it.
struct Source {
  std::string path;
  std::string text;
};

// What a rule objects to, each as "path:line: sentence".
using Findings = std::vector<std::string>;

inline bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }
inline bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}
inline bool is_header(const Source& source) { return ends_with(source.path, ".h") || ends_with(source.path, ".cuh"); }
inline bool is_code(const Source& source) { return is_header(source) || ends_with(source.path, ".cpp") || ends_with(source.path, ".cu"); }

// "comm" for src/comm/… and tests/comm/…, empty for anything else.
inline std::string room_of(std::string_view path) {
  for (std::string_view folder : {"src/", "tests/"}) {
    if (!starts_with(path, folder)) continue;
    const std::string_view rest = path.substr(folder.size());
    const size_t slash = rest.find('/');
    if (slash != std::string_view::npos) return std::string(rest.substr(0, slash));
  }
  return "";
}

inline std::string finding(const Source& source, size_t offset, std::string_view sentence) {
  size_t line = 1;
  for (size_t i = 0; i < offset && i < source.text.size(); ++i) line += source.text[i] == '\n';
  return source.path + ":" + std::to_string(line) + ": " + std::string(sentence);
}

enum class Keep { strings, code_only };

// The text with comments (and, for code_only, the insides of string and character literals) replaced by spaces: offsets and
// lines stay what they were.
inline std::string blank(std::string_view text, Keep keep) {
  std::string out(text);
  const auto erase = [&out](size_t from, size_t to) {
    for (size_t i = from; i < to && i < out.size(); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  const auto end_of = [text](std::string_view mark, size_t from) {
    const size_t at = text.find(mark, from);
    return at == std::string_view::npos ? text.size() : at + mark.size();
  };
  size_t i = 0;
  while (i < text.size()) {
    const bool after_word = i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) || text[i - 1] == '_');
    size_t next = i + 1;
    if (starts_with(text.substr(i), "//")) {
      next = end_of("\n", i);
      erase(i, next);
    } else if (starts_with(text.substr(i), "/*")) {
      next = end_of("*/", i + 2);
      erase(i, next);
    } else if (starts_with(text.substr(i), "R\"") && !after_word) {
      const size_t open = text.find('(', i);
      if (open == std::string_view::npos) break;
      next = end_of(")" + std::string(text.substr(i + 2, open - i - 2)) + "\"", open);
      if (keep == Keep::code_only) erase(open + 1, next - 1);
    } else if (text[i] == '"' || (text[i] == '\'' && !after_word)) {  // after a word ' separates digits
      while (next < text.size() && text[next] != text[i] && text[next] != '\n') next += text[next] == '\\' ? 2 : 1;
      if (keep == Keep::code_only) erase(i + 1, next);
      ++next;
    }
    i = next;
  }
  return out;
}

// Where `word` stands as a whole word.
inline std::vector<size_t> find_word(std::string_view text, std::string_view word) {
  const auto in_word = [text](size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  };
  std::vector<size_t> places;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) places.push_back(at);
  }
  return places;
}

struct Include {
  std::string target;  // base/error.h
  bool quoted;         // "…", so one of ours
  size_t offset;
};

inline std::vector<Include> includes_of(const Source& source) {
  const std::string text = blank(source.text, Keep::strings);
  const std::string code = blank(source.text, Keep::code_only);  // an #include inside a literal is none
  std::vector<Include> found;
  for (size_t at = code.find("#include"); at != std::string::npos; at = code.find("#include", at + 1)) {
    const size_t open = text.find_first_of("<\"\n", at);
    if (open == std::string::npos || text[open] == '\n') continue;
    const size_t close = text.find_first_of(">\"\n", open + 1);
    if (close == std::string::npos) continue;
    found.push_back({text.substr(open + 1, close - open - 1), text[open] == '"', at});
  }
  return found;
}

}  // namespace cairn::tidy
