#include "base/recipe.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/files.h"

namespace cairn::base {
namespace {

constexpr int64_t kRecipeBytesMax = 1 << 20;
constexpr const char* kDefault = "default";  // the origin of values that nobody gave

std::string join(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

std::string section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? "" : std::string(key.substr(0, dot));
}

std::string_view leaf_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }  // npos + 1 is 0

// Origins stand in TOML comments: nothing in them may end the line.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

std::string with_article(const std::string& type) { return (type.starts_with('i') ? "an " : "a ") + type; }

// Patterns of names have dots and stars: they stand in quotes.
std::string as_toml_key(const std::string& key) { return key.find_first_of(".*") == std::string::npos ? key : fmt::format("\"{}\"", key); }

// `given` as the type of `wanted`, where nothing is lost: integers are numbers, 1e6 is an integer, an empty list is any list.
std::optional<Setting> converted(const Setting& given, const Setting& wanted) {
  if (given.index() == wanted.index()) return given;
  const auto* integer = std::get_if<int64_t>(&given);
  const auto* number = std::get_if<double>(&given);
  if (std::holds_alternative<double>(wanted) && integer) return static_cast<double>(*integer);
  if (std::holds_alternative<int64_t>(wanted) && number && std::abs(*number) <= 0x1p53 && *number == std::floor(*number))
    return static_cast<int64_t>(*number);
  const auto* strings = std::get_if<std::vector<std::string>>(&given);
  if (strings && strings->empty()) {
    if (std::holds_alternative<std::vector<int64_t>>(wanted)) return std::vector<int64_t>{};
    if (std::holds_alternative<std::vector<double>>(wanted)) return std::vector<double>{};
  }
  const auto* integers = std::get_if<std::vector<int64_t>>(&given);
  if (std::holds_alternative<std::vector<double>>(wanted) && integers) return std::vector<double>(integers->begin(), integers->end());
  return std::nullopt;
}

// The old word for a boolean, of a key that was one and has words now.
std::optional<Setting> boolean_word(const Setting& given, const Entry& entry) {
  const auto* flag = std::get_if<bool>(&given);
  if (flag == nullptr) return std::nullopt;
  for (const auto& [old, word] : entry.renamed_words)
    if (old == (*flag ? "true" : "false")) return Setting(old);
  return std::nullopt;
}

void check_value(const std::string& key, const Setting& value, const Check& check, const std::string& origin) {
  const auto* number = std::get_if<double>(&value);
  if (number && std::isinf(*number)) fail_input("{} = {}: must be a finite number ({})", key, to_toml(value), origin);
  if (check.holds(value)) return;
  std::string allowed = check.allowed();
  if (allowed.empty()) allowed = "a number";  // only NaN fails a check that allows all
  if (const auto* text = std::get_if<std::string>(&value); text && check.kind == Check::Kind::one_of) {
    if (const auto meant = nearest(*text, check.names)) allowed += fmt::format("; did you mean \"{}\"?", *meant);
  }
  fail_input("{} = {}: must be {} ({})", key, to_toml(value), allowed, origin);
}

// The key, its aliases and its old names.
std::vector<std::string> all_names(const Entry& entry) {
  std::vector<std::string> names = {entry.key};
  names.insert(names.end(), entry.aliases.begin(), entry.aliases.end());
  names.insert(names.end(), entry.old_names.begin(), entry.old_names.end());
  return names;
}

// Every name that a recipe may have, and what to suggest for an unknown one.
struct KnownKeys {
  std::map<std::string, std::vector<std::string>> keys_of;  // section -> its keys, aliases and old names left out
  std::map<std::string, std::vector<Entry>> entries_of;     // and all about them
  std::set<std::string> accepted;                           // full keys, aliases and old names too
  std::set<std::string> sections;                           // and what they lie in

  void learn(const Section& section) {
    for (std::string name = section.name; !name.empty(); name = section_of(name)) sections.insert(name);
    for (const Entry& entry : section.entries) {
      keys_of[section.name].push_back(entry.key);
      entries_of[section.name].push_back(entry);
      for (const std::string& name : all_names(entry)) {
        const std::string full = join(section.name, name);
        accepted.insert(full);
        for (std::string in = section_of(full); in.size() > section.name.size(); in = section_of(in)) sections.insert(in);  // patterns
      }
    }
  }

  std::string advice_on_section(const std::string& name) const {
    const auto meant = nearest(name, {sections.begin(), sections.end()});
    return meant ? fmt::format("did you mean `{}`?", *meant) : fmt::format("known are {}", fmt::join(sections, ", "));
  }

  bool can_hold(const std::string& section, const std::string& key, const Setting& value) const {
    for (const Entry& entry : entries_of.at(section))
      if (entry.key == key) {
        const std::optional<Setting> as = converted(value, entry.default_value);
        return as && entry.check.holds(*as);
      }
    return false;
  }

  // The key of a section whose list of words holds this one.
  std::optional<std::string> key_with_word(const std::string& section, const Setting& value) const {
    for (const Entry& entry : entries_of.at(section))
      if (entry.check.kind == Check::Kind::one_of && std::holds_alternative<std::string>(value) && entry.check.holds(value))
        return entry.key;
    return std::nullopt;
  }

  // Suggests a key of the same section with a similar name; or, if that one does not take the given word, the key that does (a renamed
  // key); else the same key in another section; else lists what there is.
  std::string advice_on_key(const std::string& full, const Setting& value) const {
    const std::string section = section_of(full);
    const auto here = keys_of.find(section);
    if (here != keys_of.end()) {
      const auto meant = nearest(leaf_of(full), here->second);
      const auto holder = meant && can_hold(section, *meant, value) ? std::nullopt : key_with_word(section, value);
      if (holder) return fmt::format("did you mean `{}`, which takes {}?", join(section, *holder), to_toml(value));
      if (meant) return fmt::format("did you mean `{}`?", join(section, *meant));
    }
    for (const auto& [other, keys] : keys_of)
      if (std::find(keys.begin(), keys.end(), leaf_of(full)) != keys.end())
        return fmt::format("did you mean `{}`?", join(other, leaf_of(full)));
    if (here != keys_of.end()) return fmt::format("`{}` has {}", section, fmt::join(here->second, ", "));
    return fmt::format("known sections are {}", fmt::join(sections, ", "));
  }
};

}  // namespace

Recipe::File Recipe::File::read(const std::filesystem::path& path) {
  return {read_file(path, kRecipeBytesMax), one_line(path.filename().string())};
}

Recipe Recipe::parse(std::string_view text, std::string name) {
  Recipe recipe;
  recipe.add_text(text, name);
  return recipe;
}

Recipe Recipe::parse_saved(const File& file) {
  constexpr std::string_view kComment = "  # ";
  Recipe recipe = parse(file);
  std::vector<std::string_view> lines;
  for (size_t at = 0; at <= file.text.size();) {
    const size_t end = std::min(file.text.find('\n', at), file.text.size());
    lines.push_back(std::string_view(file.text).substr(at, end - at));
    at = end + 1;
  }
  for (auto& [key, given] : recipe.given_) {
    const size_t number = std::strtoull(given.origin.c_str() + given.origin.rfind(':') + 1, nullptr, 10);  // "recipe.toml:14"
    if (number < 1 || number > lines.size()) continue;
    const std::string_view line = lines[number - 1];
    if (const size_t comment = line.rfind(kComment); comment != std::string_view::npos)
      given.saved_origin = line.substr(comment + kComment.size());
  }
  return recipe;
}

void Recipe::replace_text(std::string_view key, const std::function<std::string(const std::string&)>& replacement) {
  const auto found = given_.find(key);
  if (found == given_.end()) return;
  if (auto* text = std::get_if<std::string>(&found->second.value)) *text = replacement(*text);
  if (auto* texts = std::get_if<std::vector<std::string>>(&found->second.value))
    for (std::string& one : *texts) one = replacement(one);
}

void Recipe::set(std::string_view assignment, std::string origin) {
  const size_t equals = assignment.find('=');
  const auto trimmed = [](std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
  };
  if (equals == std::string_view::npos) fail_input("{} {}: expected KEY=VALUE, like train.steps=200", origin, assignment);
  std::string key(trimmed(assignment.substr(0, equals)));
  std::erase(key, '"');  // around a pattern
  const bool plain =
      !key.empty() && key.front() != '.' && key.back() != '.' && key.find("..") == std::string::npos &&
      std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '*'; });
  if (!plain) fail_input("{} {}: \"{}\" is not a key; expected KEY=VALUE, like train.steps=200", origin, assignment, key);
  add_assignment(key, trimmed(assignment.substr(equals + 1)), origin);
}

void Recipe::set(std::string_view key, Setting value, std::string origin) {
  Given given;
  given.value = std::move(value);
  given.origin = std::move(origin);
  given.order = next_order_++;
  given_.insert_or_assign(std::string(key), std::move(given));
}

std::map<std::string, std::string> Recipe::read_patterns(const std::string& table) {
  Section section{table, "", {}};
  for (const auto& [key, given] : given_)
    if (key.starts_with(table + ".")) section.entries.push_back({key.substr(table.size() + 1), std::string(), "", {}, {}});
  if (section.entries.empty() && !tables_.contains(table)) return {};
  const std::vector<Setting> values = resolve(section, std::vector<Setting>(section.entries.size(), std::string()));
  std::map<std::string, std::string> found;
  for (size_t i = 0; i < values.size(); ++i) found[section.entries[i].key] = std::get<std::string>(values[i]);
  return found;
}

bool Recipe::has(std::string_view key) const { return given_.contains(key); }

std::vector<std::string> Recipe::tables_in(std::string_view section) const {
  std::set<std::string> names;
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  const auto note = [&](const std::string& full, bool is_table) {
    if (!full.starts_with(prefix)) return;
    const std::string rest = full.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot != std::string::npos || is_table) names.insert(rest.substr(0, dot));
  };
  for (const auto& [key, given] : given_) note(key, false);
  for (const auto& [key, origin] : tables_) note(key, true);
  return {names.begin(), names.end()};
}

// The value given for a key, under its own name, an alias or an old name. The later one wins; two from one source are an error.
const Recipe::Given* Recipe::find(const Section& section, const Entry& entry, std::string& spelled) const {
  const Given* found = nullptr;
  for (const std::string& name : all_names(entry)) {
    const std::string full = join(section.name, name);
    if (const auto table = tables_.find(full); table != tables_.end())
      fail_input("{} is a table: must be {} ({})", full, with_article(type_name(entry.default_value)), table->second);
    const auto at = given_.find(full);
    if (at == given_.end()) continue;
    if (found != nullptr && found->order == at->second.order)
      fail_input("{} ({}) and {} ({}) are the same key: give one of them", spelled, found->origin, full, at->second.origin);
    if (found != nullptr && found->order > at->second.order) continue;
    found = &at->second;
    spelled = full;
  }
  return found;
}

std::vector<Setting> Recipe::resolve(const Section& section, std::vector<Setting> defaults) {
  ReadSection now{section, {}};
  for (size_t i = 0; i < section.entries.size(); ++i) {
    const Entry& entry = section.entries[i];
    std::string key = join(section.name, entry.key), origin = kDefault, shown = origin;
    if (const Given* given = find(section, entry, key)) {
      origin = given->origin;
      const Setting by_default = defaults[i];
      if (!given->unsupported_type.empty())
        fail_input("{} is {}: must be {} ({})", key, given->unsupported_type, with_article(type_name(entry.default_value)), origin);
      std::optional<Setting> value = converted(given->value, entry.default_value);
      if (!value && !given->text.empty() && std::holds_alternative<std::string>(entry.default_value)) value = given->text;
      if (!value) value = boolean_word(given->value, entry);
      if (!value) fail_input("{} = {}: must be {} ({})", key, to_toml(given->value), with_article(type_name(entry.default_value)), origin);
      defaults[i] = std::move(*value);
      for (const auto& [old, word] : entry.renamed_words)
        if (defaults[i] == Setting(old)) {
          defaults[i] = word;
          break;
        }
      const bool edited = given->saved_origin == kDefault && defaults[i] != by_default;
      shown = given->saved_origin.empty() || edited ? origin : given->saved_origin;
    }
    check_value(key, defaults[i], entry.check, origin);
    now.values.push_back({entry.key, defaults[i], shown});
  }
  // A section may be read again (by another rule's schema): the newest reading of a key counts.
  const auto same = std::find_if(read_.begin(), read_.end(), [&](const ReadSection& r) { return r.section.name == section.name; });
  if (same == read_.end()) {
    read_.push_back(std::move(now));
    return defaults;
  }
  for (size_t i = 0; i < now.values.size(); ++i) {
    const auto old = std::find_if(same->values.begin(), same->values.end(), [&](const Read& r) { return r.key == now.values[i].key; });
    if (old != same->values.end()) {
      *old = now.values[i];
    } else {
      same->values.push_back(now.values[i]);
      same->section.entries.push_back(now.section.entries[i]);
    }
  }
  return defaults;
}

void Recipe::check_all_used(const std::vector<Section>& known) const {
  KnownKeys all;
  for (const ReadSection& read : read_) all.learn(read.section);
  for (const Section& section : known) all.learn(section);
  for (const auto& [name, origin] : tables_) {
    if (!all.sections.contains(name) && !all.accepted.contains(name))
      fail_input("unknown section `{}` ({}): {}", name, origin, all.advice_on_section(name));
  }
  for (const auto& [full, given] : given_) {
    if (all.accepted.contains(full)) continue;
    if (all.sections.contains(full)) fail_input("`{}` is a section, not a value ({}): write {}.KEY = ...", full, given.origin, full);
    const std::string section = section_of(full);
    if (!section.empty() && !all.sections.contains(section))
      fail_input("unknown section `{}` in `{}` ({}): {}", section, full, given.origin, all.advice_on_section(section));
    fail_input("unknown key `{}` ({}): {}", full, given.origin, all.advice_on_key(full, given.value));
  }
}

std::vector<std::string> Recipe::hints(const std::vector<Section>& known) const {
  std::vector<std::string> lines;
  const auto add = [&](std::string line) {  // once, though several sections of one name may have a key
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(one_line(std::move(line)));
  };
  for (const Section& section : known)
    for (const Entry& entry : section.entries) {
      const std::string present = join(section.name, entry.key);
      for (const std::string& old : entry.old_names)
        if (const auto at = given_.find(join(section.name, old)); at != given_.end())
          add(fmt::format("{}: {} is now {}; the old name still works", at->second.origin, at->first, present));
      for (const std::string& name : all_names(entry)) {
        const auto at = given_.find(join(section.name, name));
        if (at == given_.end()) continue;
        for (const auto& [old, word] : entry.renamed_words)
          if (at->second.value == Setting(old) || boolean_word(at->second.value, entry) == Setting(old))
            add(fmt::format("{}: {} = \"{}\" is now \"{}\"; the old word still works", at->second.origin, at->first, old, word));
      }
    }
  return lines;
}

std::vector<Recipe::Change> Recipe::changes_since(const Recipe& before) const {
  std::map<std::string, std::string> values;
  for (const ReadSection& read : before.read_)
    for (const Read& value : read.values) values[join(read.section.name, value.key)] = to_toml(value.value);
  std::vector<Change> changes;
  for (const ReadSection& read : read_)
    for (const Read& value : read.values) {
      const std::string key = join(read.section.name, value.key), now = to_toml(value.value);
      const auto old = values.find(key);
      if (old != values.end() && old->second != now) changes.push_back({key, old->second, now, value.origin});
    }
  return changes;
}

std::string Recipe::resolved_toml() const {
  std::string text;
  for (const bool rooted : {true, false}) {  // keys outside any section must come first in TOML
    for (const ReadSection& read : read_) {
      if (read.section.name.empty() != rooted || read.values.empty()) continue;
      if (!text.empty()) text += "\n";
      if (!rooted) text += fmt::format("[{}]\n", read.section.name);
      for (const Read& value : read.values)
        text += fmt::format("{} = {}  # {}\n", as_toml_key(value.key), to_toml(value.value), one_line(value.origin));
    }
  }
  return text;
}

}  // namespace cairn::base
