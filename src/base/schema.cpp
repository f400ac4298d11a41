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

// A cell of a Markdown table: a bar would end it.
std::string cell(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '|') safe += '\\';
    safe += c == '\n' ? ' ' : c;
  }
  return safe;
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
    const bool of_text =
        std::holds_alternative<std::string>(entry.default_value) || std::holds_alternative<std::vector<std::string>>(entry.default_value);
    const bool fits = entry.check.kind == Check::Kind::any ||
                      (entry.check.kind == Check::Kind::one_of ? of_text : !of_text && !std::holds_alternative<bool>(entry.default_value));
    CAIRN_CHECK(fits, "schema {}: {} is a {}, which cannot be \"{}\"", section.name, entry.key, type_name(entry.default_value),
                entry.check.allowed());
    CAIRN_CHECK(entry.check.holds(entry.default_value), "schema {}: the default {} = {} is not {}", section.name, entry.key,
                to_toml(entry.default_value), entry.check.allowed());
  }
}

std::string reference_markdown(const std::vector<Section>& sections) {
  std::string page;
  for (const Section& section : sections) {
    page += fmt::format("## `[{}]`\n\n{}\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n", section.name,
                        section.summary);
    for (const Entry& entry : section.entries) {
      std::string help = entry.help;
      if (!entry.aliases.empty()) help += fmt::format(" Also written `{}`.", fmt::join(entry.aliases, "`, `"));
      page += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", entry.key, type_name(entry.default_value), cell(to_toml(entry.default_value)),
                          cell(entry.check.allowed()), cell(help));
    }
    page += "\n";
  }
  return page;
}

}  // namespace cairn::base
