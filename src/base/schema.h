#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/enum_names.h"

namespace cairn::base {

// A value that a recipe key can have.
using Setting = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>, std::vector<double>>;

// What a value must satisfy; for a list, what every element must satisfy. Made by the functions below.
struct Check {
  enum class Kind { any, at_least, more_than, between, one_of, path };
  Kind kind = Kind::any;
  double low = 0;
  double high = 0;
  std::vector<std::string> names;
  bool may_change = false;  // made by may_change()

  bool holds(const Setting& value) const;  // NaN never holds
  std::string allowed() const;             // "at least 1", "one of fp32, bf16"; empty for any
};
Check any();
Check at_least(double low);
Check more_than(double low);
Check between(double low, double high);  // both ends allowed
Check one_of(std::vector<std::string> names);
Check path();                            // any text; relative ones begin where the run was started, also when it is resumed elsewhere
Check path_or_word(std::string ending);  // a path where it ends so ("X.jinja"), else a word
Check may_change(Check check = {});      // of a key of [model]: the weights do not depend on it, so a resumed run may change it

// Whether a value of a key with this check is a path, and not a word.
bool is_path(const Check& check, const std::string& value);

// One key of a section, without the struct it fills: what help texts, the reference page and Recipe see.
struct Entry {
  std::string key;
  Setting default_value;
  std::string help;
  Check check;
  std::vector<std::string> aliases;  // other accepted names, without the section
  // Retired spellings: of the key, without the section, and of its values, each with the present word. Recipes may still use them and get
  // a hint (Recipe::hints); help and the reference page leave them out.
  std::vector<std::string> old_names = {};
  std::vector<std::pair<std::string, std::string>> renamed_words = {};
};

// All keys of one section.
struct Section {
  std::string name;  // may be dotted: "sync.dp"
  std::string summary;
  std::vector<Entry> entries;
};

std::string type_name(const Setting& value);  // "integer", "list of strings"
std::string to_toml(const Setting& value);    // as TOML; reads back to the same value
void check_section(const Section& section);   // throws broken_invariant where a schema contradicts itself (a default out of range)
// A page section per Section: its summary and one list item per key with type, default, allowed values and meaning. Lines have at most 118
// columns.
std::string reference_markdown(const std::vector<Section>& sections);

// One key as its owner writes it:
//
//   {"steps", &TrainOptions::steps, "Optimizer steps.", at_least(1), {"max_steps"}}
//   {"min_lr_ratio", &OptimOptions::min_lr_ratio, "Final rate.", between(0, 1), {}, {"final_share"}}   // no alias; the key's old name
//   {"form", &ContextOptions::form, "How keys travel.", kContextFormNames}   // an enum, with its table of words (enum_names.h)
template <typename T>
struct Key {
  // A member of one of the types of Setting.
  template <typename M>
  requires(!std::is_enum_v<M>) Key(std::string key, M T::*member, std::string help, Check check = {}, std::vector<std::string> aliases = {},
                                   std::vector<std::string> old_names = {})
      : entry{std::move(key), M{}, std::move(help), std::move(check), std::move(aliases), std::move(old_names)},
        get([member](const T& options) { return Setting(options.*member); }),
        put([member](T& options, const Setting& value) { options.*member = std::get<M>(value); }) {}

  // A member of enum type. Recipes spell it as a string that is one of the words of `names`, a static table.
  template <typename E>
  requires(std::is_enum_v<E>) Key(std::string key, E T::*member, std::string help, std::type_identity_t<EnumNames<E>> names,
                                  std::vector<std::string> aliases = {}, std::vector<std::string> old_names = {})
      : entry{std::move(key),     std::string(),        std::move(help),     one_of(enum_words(names)),
              std::move(aliases), std::move(old_names), renamed_words(names)},
        get([member, names](const T& options) { return Setting(std::string(enum_name(names, options.*member))); }),
        put([member, names](T& options, const Setting& value) {
          options.*member = parse_enum(names, "value", std::get<std::string>(value));
        }) {}

  Entry entry;
  std::function<Setting(const T&)> get;
  std::function<void(T&, const Setting&)> put;
};

// Describes an options struct T once. Parsing, defaults, range checks, --help, the reference page and the saved recipe all come from it.
template <typename T>
class Schema {
 public:
  Schema(std::string section, std::string summary, std::vector<Key<T>> keys)
      : section_{std::move(section), std::move(summary), {}}, keys_(std::move(keys)) {
    const T defaults{};
    for (const Key<T>& key : keys_) {
      section_.entries.push_back(key.entry);
      section_.entries.back().default_value = key.get(defaults);
    }
    check_section(section_);
  }

  // The same keys under another section name: how `sync.dp` and `sync.island` share one schema.
  Schema in(std::string section) const {
    Schema moved = *this;
    moved.section_.name = std::move(section);
    return moved;
  }

  const Section& section() const { return section_; }

  // The struct's values in the order of the keys, and back. Not inlined: GCC 12 would follow member pointers that cannot be there.
  [[gnu::noinline]] std::vector<Setting> values_of(const T& options) const {
    std::vector<Setting> values;
    for (const Key<T>& key : keys_) values.push_back(key.get(options));
    return values;
  }
  [[gnu::noinline]] void assign(T& options, const std::vector<Setting>& values) const {
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i].put(options, values[i]);
  }

 private:
  Section section_;
  std::vector<Key<T>> keys_;
};

}  // namespace cairn::base
