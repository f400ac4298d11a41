#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/schema.h"

namespace cairn::base {

// What a user asks for: a TOML file and what the command line adds, each value with its origin. Options structs are read from it
// through their schemas; what nobody knows is refused. A value: copy it where ranks are threads, since reading takes notes.
class Recipe {
 public:
  // A recipe's file as it is: what one rank reads and others are told.
  struct File {
    std::string text;
    std::string name;  // for messages
    static File read(const std::filesystem::path& path);
  };

  Recipe() = default;  // empty: every key has its default
  // All throw bad_input, naming file, line and column.
  static Recipe parse_file(const std::filesystem::path& path) { return parse(File::read(path)); }
  static Recipe parse(const File& file) { return parse(file.text, file.name); }
  static Recipe parse(std::string_view text, std::string name);

  // `train.steps=200`: the right side is read as TOML, or else taken as a string.
  void set(std::string_view assignment, std::string origin = "--set");
  // For options that have a flag of their own: set("data.path", path, "--data").
  void set(std::string_view key, Setting value, std::string origin);

  // The options of one section: what the recipe says, `options` elsewhere. Checks types and ranges.
  template <typename T>
  T read(const Schema<T>& schema, T options = {}) {
    schema.assign(options, resolve(schema.section(), schema.values_of(options)));
    return options;
  }

  bool has(std::string_view key) const;                                // the user gave this key
  std::vector<std::string> tables_in(std::string_view section) const;  // "sync" -> {"dp", "island"}: tables the user opened there, sorted

  // Refuses the first key or section that was neither read nor is in `known`, with its place and the nearest valid name.
  void check_all_used(const std::vector<Section>& known = {}) const;

  // Every value read so far, by section, each with its origin in a comment. Parses back to the same values.
  std::string resolved_toml() const;

 private:
  struct Given {
    Setting value;
    std::string text;              // as typed, for --set: lets `--set name=12` fill a string
    std::string unsupported_type;  // "a date", "a list of tables": what no key can hold; else empty
    std::string origin;            // "tiny.toml:14", "--set"
    int64_t order = 0;             // of being given, one per file or flag: later wins between a key and its alias
  };
  struct Read {
    std::string key;
    Setting value;
    std::string origin;
  };
  struct ReadSection {
    Section section;
    std::vector<Read> values;
  };
  friend struct RecipeParser;  // fills given_ and tables_

  std::vector<Setting> resolve(const Section& section, std::vector<Setting> defaults);
  const Given* find(const Section& section, const Entry& entry, std::string& spelled) const;

  std::map<std::string, Given, std::less<>> given_;         // by full dotted key
  std::map<std::string, std::string, std::less<>> tables_;  // every table opened or implied -> origin
  std::vector<ReadSection> read_;                           // in order of first reading
  int64_t next_order_ = 0;
};

}  // namespace cairn::base
