// How TOML text becomes the flat form that a Recipe keeps. The only file of Cairn that sees toml++.
#include <algorithm>
#include <optional>

// A hostile text can break an assertion inside toml++: that becomes an error about the text instead of ending the program.
namespace cairn::base {
struct TomlAssertFailed {};
constexpr void check_toml_assert(bool holds) {
  if (!holds) throw TomlAssertFailed();
}
}  // namespace cairn::base
#define TOML_ASSERT(expression) ::cairn::base::check_toml_assert(static_cast<bool>(expression))
#include <toml++/toml.h>

#include "base/check.h"
#include "base/recipe.h"

namespace cairn::base {
namespace {

bool plain(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Tables whose keys are patterns of names: "layers.*.weight" = "S(0)".
constexpr std::string_view kPatternTables[] = {"plan.place"};

bool is_pattern(std::string_view table, std::string_view key) {
  return std::find(std::begin(kPatternTables), std::end(kPatternTables), table) != std::end(kPatternTables) && !key.empty() &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return c == '.' || c == '*' || plain({&c, 1});
         });
}

const char* kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date";
    case toml::node_type::array:
      return "a list of lists";
    case toml::node_type::table:
      return "a list of tables";
    default:
      return "a list of unlike things";
  }
}

// A list of one kind; integers among numbers are taken as numbers. Empty lists come out as strings and fit any list.
std::optional<Setting> as_list(const toml::array& array, std::string& unsupported_type) {
  bool strings = true, integers = true, numbers = true;
  for (const toml::node& node : array) {
    strings = strings && node.is_string();
    integers = integers && node.is_integer();
    numbers = numbers && node.is_number();
  }
  if (strings) {
    std::vector<std::string> list;
    for (const toml::node& node : array) list.push_back(node.as_string()->get());
    return list;
  }
  if (integers) {
    std::vector<int64_t> list;
    for (const toml::node& node : array) list.push_back(node.as_integer()->get());
    return list;
  }
  if (numbers) {
    std::vector<double> list;
    for (const toml::node& node : array) list.push_back(*node.value<double>());
    return list;
  }
  unsupported_type = kind_of(*array.get(0));
  return std::nullopt;
}

std::optional<Setting> as_setting(const toml::node& node, std::string& unsupported_type) {
  if (const auto* x = node.as_boolean()) return x->get();
  if (const auto* x = node.as_integer()) return x->get();
  if (const auto* x = node.as_floating_point()) return x->get();
  if (const auto* x = node.as_string()) return x->get();
  if (const auto* x = node.as_array()) return as_list(*x, unsupported_type);
  unsupported_type = kind_of(node);
  return std::nullopt;
}

constexpr int64_t kKeyDots = 32;

// Where the string that begins at `at` ends: just behind its closing marks, or at the end of the text.
size_t after_string(std::string_view text, size_t at) {
  const char mark = text[at];
  const std::string three(3, mark);
  const bool long_one = text.substr(at).starts_with(three);
  for (at += long_one ? 3 : 1; at < text.size(); ++at) {
    if (mark == '"' && text[at] == '\\') {
      ++at;
    } else if (long_one ? text.substr(at).starts_with(three) : text[at] == mark || text[at] == '\n') {
      return std::min(at + (long_one ? 3 : 1), text.size());
    }
  }
  return text.size();
}

// The first line that opens a section without a valid name: where toml++ fails its assertion.
int64_t line_of_bad_section(std::string_view text) {
  int64_t line = 1;
  for (; !text.empty(); ++line) {
    std::string_view now = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), now.size() + 1));
    const auto skip_space = [&now] { now.remove_prefix(std::min(now.find_first_not_of(" \t"), now.size())); };
    skip_space();
    if (!now.starts_with('[')) continue;
    now.remove_prefix(now.starts_with("[[") ? 2 : 1);
    skip_space();
    if (now.empty() || !(plain(now.substr(0, 1)) || now[0] == '"' || now[0] == '\'')) return line;
  }
  return line - 1;
}

// A key a.b.c opens a table for each dot, and the tree of a key with a million dots can be neither walked nor dropped by recursion. Numbers
// and names in values have a dot or two.
std::optional<int64_t> line_of_deep_key(std::string_view text) {
  int64_t dots = 0, line = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const size_t end = after_string(text, at);
      line += std::count(text.begin() + static_cast<int64_t>(at), text.begin() + static_cast<int64_t>(end), '\n');
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    line += c == '\n';
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    if (c == '.' && ++dots > kKeyDots) return line;
    ++at;
  }
  return std::nullopt;
}

}  // namespace

// Walks a parsed tree. `name` empty: the origin of every value is `origin` itself, not a line of a file.
struct TreeWalk {
  std::string name, origin;

  std::string origin_of(const toml::node& node) const {
    return name.empty() ? origin : fmt::format("{}:{}", name, node.source().begin.line);
  }

  void table(std::map<std::string, std::string, std::less<>>& tables, auto& store, const toml::table& table,
             const std::string& prefix) const {
    for (const auto& [name_of_key, node] : table) {
      const std::string_view key = name_of_key.str();
      if (!plain(key) && !is_pattern(prefix, key))
        fail_input("recipe key \"{}\" ({}): keys are letters, digits, _ and -", key, origin_of(node));
      const std::string full = prefix.empty() ? std::string(key) : fmt::format("{}.{}", prefix, key);
      if (const toml::table* inner = node.as_table()) {
        tables.try_emplace(full, origin_of(node));
        this->table(tables, store, *inner, full);
      } else {
        store(full, node, origin_of(node));
      }
    }
  }
};

void Recipe::add_text(std::string_view text, const std::string& name) {
  if (const auto line = line_of_deep_key(text)) fail_input("{}:{}: a key with more than {} dots: no recipe has one", name, *line, kKeyDots);
  toml::table root;
  try {
    root = toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    const std::string_view why = error.description();
    fail_input("{}:{}:{}: not valid TOML: {}", name, at.line, at.column,
               why.find("TOML_MAX_NESTED") != std::string_view::npos ? "lists or tables lie too deep within one another" : why);
  } catch (const TomlAssertFailed&) {
    fail_input("{}:{}: not valid TOML: a section needs a name: [train]", name, line_of_bad_section(text));
  }
  const auto store = [&](const std::string& key, const toml::node& node, std::string origin) {
    Given given;
    if (auto value = as_setting(node, given.unsupported_type)) given.value = std::move(*value);
    given.origin = std::move(origin);
    given.order = next_order_;
    given_.insert_or_assign(key, std::move(given));
  };
  TreeWalk{name, name}.table(tables_, store, root, "");
  ++next_order_;
}

void Recipe::add_assignment(const std::string& key, std::string_view value, const std::string& origin) {
  Given given;
  given.text = std::string(value);
  given.value = given.text;
  given.origin = origin;
  given.order = next_order_++;
  toml::table root;
  bool is_toml = value.find_first_of("\r\n#") == std::string_view::npos || value.starts_with('"') || value.starts_with('\'');
  is_toml = is_toml && !line_of_deep_key(value);
  try {
    if (is_toml) root = toml::parse(fmt::format("value = {}", value));
  } catch (const toml::parse_error&) {
    is_toml = false;  // `bf16`, `/some/path`: a string that needs no quotes
  } catch (const TomlAssertFailed&) {
    is_toml = false;
  }
  if (!is_toml || root.size() != 1) {
    given_.insert_or_assign(key, std::move(given));
    return;
  }
  const toml::node& node = *root.get("value");
  if (const toml::table* table = node.as_table()) {
    const auto store = [&](const std::string& full, const toml::node& leaf, const std::string&) {
      Given inner;
      if (auto setting = as_setting(leaf, inner.unsupported_type)) inner.value = std::move(*setting);
      inner.origin = origin;
      inner.order = given.order;
      given_.insert_or_assign(full, std::move(inner));
    };
    tables_.try_emplace(key, origin);
    TreeWalk{"", origin}.table(tables_, store, *table, key);
    return;
  }
  std::string unsupported_type;
  if (auto setting = as_setting(node, unsupported_type)) given.value = std::move(*setting);
  if (unsupported_type.starts_with("a list")) given.unsupported_type = unsupported_type;  // a date stays the text that was typed
  given_.insert_or_assign(key, std::move(given));
}

}  // namespace cairn::base
