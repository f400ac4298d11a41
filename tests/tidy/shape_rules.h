#pragma once
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tidy/source.h"

namespace cairn::tidy {

inline constexpr int64_t kLinesMax = 500;

inline Findings opens_headers_with_pragma_once(const Source& source) {
  if (!is_header(source)) return {};
  const std::string text = blank(source.text, Keep::strings);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && starts_with(std::string_view(text).substr(first), "#pragma once")) return {};
  return {finding(source, 0, "a header begins with #pragma once")};
}

// Inside a function it harms nobody; at the left margin it does.
inline Findings opens_no_namespace_in_headers(const Source& source) {
  Findings found;
  if (!is_header(source)) return found;
  const std::string text = blank(source.text, Keep::code_only);
  for (size_t at : find_word(text, "using")) {
    const size_t next = text.find_first_not_of(" \t", at + 5);
    const bool margin = at == 0 || text[at - 1] == '\n';
    if (margin && next != std::string::npos && starts_with(std::string_view(text).substr(next), "namespace ")) {
      found.push_back(finding(source, at, "no `using namespace` in a header: it leaks into every file that includes it"));
    }
  }
  return found;
}

inline Findings names_files_for_ideas(const Source& source) {
  if (!is_code(source)) return {};
  const std::string stem = std::filesystem::path(source.path).stem().string();
  for (std::string_view role : {"util", "utils", "helper", "helpers", "common", "types", "manager", "misc"}) {
    const bool named = stem == role || starts_with(stem, std::string(role) + "_") || ends_with(stem, "_" + std::string(role)) ||
                       stem.find("_" + std::string(role) + "_") != std::string::npos;
    if (named) return {finding(source, 0, "\"" + std::string(role) + "\" says nothing: name the one idea inside")};
  }
  return {};
}

inline Findings fits_files_into_one_sitting(const Source& source) {
  const int64_t lines = std::count(source.text.begin(), source.text.end(), '\n');
  if (!is_code(source) || lines <= kLinesMax) return {};
  return {finding(source, 0, std::to_string(lines) + " lines, at most " + std::to_string(kLinesMax) + ": what is the second idea?")};
}

inline constexpr int64_t kFunctionLinesMax = 80, kStructFieldsMax = 24;

// The lines of a text, without their ends.
inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// By the layout that clang-format gives: a body opens at the end of a line and closes by a brace in the same column.
inline Findings keeps_functions_on_a_screen(const Source& source) {
  Findings found;
  if (!is_code(source) || !starts_with(source.path, "src/")) return found;
  const std::string text = blank(source.text, Keep::code_only);
  const std::vector<std::string_view> lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t indent = lines[i].find_first_not_of(' ');
    if (indent == std::string_view::npos || indent > 2 || !ends_with(lines[i], "{")) continue;
    const std::string_view content = lines[i].substr(indent);
    bool other = false;
    for (std::string_view word : {"namespace", "struct", "class", "enum", "union", "extern", "}"})
      other = other || starts_with(content, word);
    if (other || lines[i].find(')') == std::string_view::npos) continue;
    size_t end = i + 1;
    while (end < lines.size() && !(lines[end].size() > indent && lines[end].find_first_not_of(' ') == indent && lines[end][indent] == '}'))
      ++end;
    const auto length = static_cast<int64_t>(end - i + 1);
    if (end < lines.size() && length > kFunctionLinesMax)
      found.push_back(finding(source, static_cast<size_t>(lines[i].data() - text.data()),
                              "a function of " + std::to_string(length) + " lines, at most " + std::to_string(kFunctionLinesMax)));
  }
  return found;
}

// Fields of the trainer's structs: declarations in the body, without functions.
inline Findings keeps_trainer_structs_small(const Source& source) {
  Findings found;
  if (!is_header(source) || !starts_with(source.path, "src/train/")) return found;
  const std::string text = blank(source.text, Keep::code_only);
  const std::vector<std::string_view> lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!starts_with(lines[i], "struct ") || !ends_with(lines[i], "{")) continue;
    int64_t fields = 0;
    for (size_t at = i + 1; at < lines.size() && !starts_with(lines[at], "}"); ++at) {
      const std::string_view line = lines[at].substr(0, lines[at].find_last_not_of(' ') + 1);
      if (line.size() < 3 || line[2] == ' ' || !ends_with(line, ";")) continue;  // continued, or inside of something
      const std::string_view name = line.substr(0, line.find_first_of("={"));
      if (starts_with(line, "  static ") || starts_with(line, "  using ") || starts_with(line, "  struct ")) continue;
      const size_t open = name.find('(');
      const bool function =
          open != std::string_view::npos && (name.find("std::function<") > open && name.find("(*") == std::string_view::npos);
      if (!function)
        fields += 1 + std::count(name.begin(), name.end(), ',') -
                  (name.find('<') != std::string_view::npos
                       ? std::count(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(name.rfind('>') + 1), ',')
                       : 0);
    }
    if (fields > kStructFieldsMax)
      found.push_back(finding(source, static_cast<size_t>(lines[i].data() - text.data()),
                              "a struct of " + std::to_string(fields) + " fields, at most " + std::to_string(kStructFieldsMax)));
  }
  return found;
}

// Paths and hosts of the machine somebody happened to work on. Spelled in pieces, for this file is read too.
inline Findings names_no_machine(const Source& source) {
  Findings found;
  const std::string& text = source.text;
  const auto each = [&text](const std::string& mark, const auto& act) {
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) act(at);
  };
  for (const std::string& folder : {std::string("/ro") + "ot/", std::string("/wo") + "rk/"}) {
    each(folder, [&](size_t at) {
      const char before = at == 0 ? ' ' : text[at - 1];
      const bool inside_a_path =
          std::isalnum(static_cast<unsigned char>(before)) || std::string_view("_.~})/-").find(before) != std::string_view::npos;
      if (!inside_a_path) found.push_back(finding(source, at, "names a path of somebody's machine"));
    });
  }
  each("://", [&](size_t at) {
    const std::string host = text.substr(at + 3, std::min(text.find_first_of("/ \"'\n)>", at + 3), text.size()) - at - 3);
    bool inside =
        host.find(std::string("artifac") + "tory") != std::string::npos || host.find(std::string("nex") + "us") != std::string::npos;
    for (std::string_view end : {".internal", ".corp", ".lan"}) inside = inside || ends_with(host, end);
    if (inside) found.push_back(finding(source, at, "names a package registry of somebody's network"));
  });
  each(std::string("index") + "-url",
       [&](size_t at) { found.push_back(finding(source, at, "names a package registry of somebody's network")); });
  return found;
}

// Rooms among these paths that have sources and no README.md.
inline std::set<std::string> rooms_without_readme(const std::set<std::string>& paths) {
  std::set<std::string> rooms;
  for (const std::string& path : paths) {
    const std::string room = room_of(path);
    if (starts_with(path, "src/") && !room.empty() && !paths.contains("src/" + room + "/README.md")) rooms.insert(room);
  }
  return rooms;
}

}  // namespace cairn::tidy
