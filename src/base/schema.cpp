#include "base/schema.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::base {
namespace {

template <typename... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Match(Cases...) -> Match<Cases...>;

bool number_holds(const Check& check, double value) {
  if (std::isnan(value)) return false;
  switch (check.kind) {
    case Check::Kind::at_least:
      return value >= check.low;
    case Check::Kind::more_than:
      return value > check.low;
    case Check::Kind::between:
      return value >= check.low && value <= check.high;
    default:
      return true;
  }
}

bool name_holds(const Check& check, const std::string& value) {
  return check.kind != Check::Kind::one_of || std::find(check.names.begin(), check.names.end(), value) != check.names.end();
}

// TOML basic string: everything that could end it or be refused inside it is escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

// The shortest digits that read back to the same double, marked as a float.
std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <typename T, typename Write>
std::string list(const std::vector<T>& values, Write write) {
  std::vector<std::string> parts;
  for (const T& value : values) parts.push_back(write(value));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

constexpr size_t kPageColumns = 118;

// Whether Markdown takes a line that begins with this word for a list item, a heading, a quote or an underline.
bool opens_block(std::string_view word) {
  const std::string_view rest = word.substr(std::min(word.find_first_not_of("0123456789"), word.size()));
  return word.find_first_not_of("-+*#>=") == std::string_view::npos || (rest.size() < word.size() && (rest == "." || rest == ")"));
}

// What may not be broken across lines: words and code spans, with a word that would open a block kept beside the one before it.
std::vector<std::string> unbreakable_parts(std::string_view text) {
  std::vector<std::string> parts;
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    if (!parts.empty() && opens_block(word)) {
      parts.back() += " " + word;
    } else {
      parts.push_back(word);
    }
    word.clear();
  };
  bool in_code = false;
  for (const char c : text) {
    if (c == '`') in_code = !in_code;
    if (in_code || (c != ' ' && c != '\n')) {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return parts;
}

// `text` in lines of at most kPageColumns, each but the first behind `indent`; ends with a line break.
std::string wrapped(std::string_view text, std::string_view indent) {
  std::string page;
  size_t column = 0;
  for (const std::string& part : unbreakable_parts(text)) {
    if (column > 0 && column + 1 + part.size() > kPageColumns) {
      page += fmt::format("\n{}{}", indent, part);
      column = indent.size() + part.size();
    } else {
      page += (column > 0 ? " " : "") + part;
      column += (column > 0 ? 1 : 0) + part.size();
    }
  }
  return page + "\n";
}

// `steps`: integer, default `340`, at least 1. Optimizer steps. Also written `max_steps`.
std::string describe_key(const Entry& entry) {
  const std::string allowed = entry.check.allowed();
  std::string text = fmt::format("`{}`: {}, default `{}`{}{}. {}", entry.key, type_name(entry.default_value), to_toml(entry.default_value),
                                 allowed.empty() ? "" : ", ", allowed, entry.help);
  if (!entry.aliases.empty()) text += fmt::format(" Also written `{}`.", fmt::join(entry.aliases, "`, `"));
  return text;
}

bool plain_key(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

}  // namespace

bool Check::holds(const Setting& value) const {
  return std::visit(Match{[&](bool) { return true; }, [&](int64_t x) { return number_holds(*this, static_cast<double>(x)); },
                          [&](double x) { return number_holds(*this, x); }, [&](const std::string& x) { return name_holds(*this, x); },
                          [&](const std::vector<std::string>& x) {
                            return std::all_of(x.begin(), x.end(), [&](auto& e) { return name_holds(*this, e); });
                          },
                          [&](const auto& x) {
                            return std::all_of(x.begin(), x.end(), [&](auto e) { return number_holds(*this, static_cast<double>(e)); });
                          }},
                    value);
}

std::string Check::allowed() const {
  switch (kind) {
    case Kind::at_least:
      return fmt::format("at least {}", low);
    case Kind::more_than:
      return fmt::format("more than {}", low);
    case Kind::between:
      return fmt::format("between {} and {}", low, high);
    case Kind::one_of:
      return fmt::format("one of {}", fmt::join(names, ", "));
    default:
      return "";
  }
}

Check any() { return {}; }
Check at_least(double low) { return {Check::Kind::at_least, low, 0, {}}; }
Check more_than(double low) { return {Check::Kind::more_than, low, 0, {}}; }
Check between(double low, double high) { return {Check::Kind::between, low, high, {}}; }
Check one_of(std::vector<std::string> names) { return {Check::Kind::one_of, 0, 0, std::move(names)}; }
Check path() { return {Check::Kind::path, 0, 0, {}}; }
Check path_or_word(std::string ending) { return {Check::Kind::path, 0, 0, {std::move(ending)}}; }
Check may_change(Check check) {
  check.may_change = true;
  return check;
}

bool is_path(const Check& check, const std::string& value) {
  return check.kind == Check::Kind::path && !value.empty() && (check.names.empty() || value.ends_with(check.names.front()));
}

std::string type_name(const Setting& value) {
  static constexpr const char* kNames[] = {"boolean",         "integer",          "number",         "string",
                                           "list of strings", "list of integers", "list of numbers"};
  return kNames[value.index()];
}

std::string to_toml(const Setting& value) {
  return std::visit(Match{[](bool x) { return std::string(x ? "true" : "false"); }, [](int64_t x) { return std::to_string(x); },
                          [](double x) { return number(x); }, [](const std::string& x) { return quoted(x); },
                          [](const std::vector<std::string>& x) { return list(x, quoted); },
                          [](const std::vector<int64_t>& x) { return list(x, [](int64_t e) { return std::to_string(e); }); },
                          [](const std::vector<double>& x) { return list(x, number); }},
                    value);
}

void check_section(const Section& section) {
  std::set<std::string> names;
  for (const Entry& entry : section.entries) {
    CAIRN_CHECK(plain_key(entry.key), "schema {}: key \"{}\" must be lower-case letters, digits and _", section.name, entry.key);
    CAIRN_CHECK(names.insert(entry.key).second, "schema {}: {} twice", section.name, entry.key);
    for (const std::string& alias : entry.aliases)
      CAIRN_CHECK(names.insert(alias).second, "schema {}: alias {} twice", section.name, alias);
    for (const std::string& old : entry.old_names) CAIRN_CHECK(names.insert(old).second, "schema {}: old name {} twice", section.name, old);
    for (const auto& [old, word] : entry.renamed_words)
      CAIRN_CHECK(!entry.check.holds(old) && entry.check.holds(word), "schema {}: {}: \"{}\" cannot be the old word for \"{}\"",
                  section.name, entry.key, old, word);
    const bool of_text =
        std::holds_alternative<std::string>(entry.default_value) || std::holds_alternative<std::vector<std::string>>(entry.default_value);
    const bool fits =
        entry.check.kind == Check::Kind::any || (entry.check.kind == Check::Kind::one_of || entry.check.kind == Check::Kind::path
                                                     ? of_text
                                                     : !of_text && !std::holds_alternative<bool>(entry.default_value));
    CAIRN_CHECK(fits, "schema {}: {} is a {}, which cannot be \"{}\"", section.name, entry.key, type_name(entry.default_value),
                entry.check.kind == Check::Kind::path ? "a path" : entry.check.allowed());
    CAIRN_CHECK(entry.check.holds(entry.default_value), "schema {}: the default {} = {} is not {}", section.name, entry.key,
                to_toml(entry.default_value), entry.check.allowed());
  }
}

std::string reference_markdown(const std::vector<Section>& sections) {
  std::string page;
  for (const Section& section : sections) {
    page += fmt::format("## `[{}]`\n\n{}\n", section.name, wrapped(section.summary, ""));
    for (const Entry& entry : section.entries) page += wrapped("- " + describe_key(entry), "  ");
    page += "\n";
  }
  return page;
}

}  // namespace cairn::base
