#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/schema.h"

namespace cairn::base {

// What a user asks for: a TOML file and what the command line adds. Every value has its origin ("tiny.toml:14", "--set"). Options structs
// are read from it through their schemas (schema.h); keys that no schema knows are refused. A value: reading records what was read, so
// ranks that are threads each have their own copy.
class Recipe {
 public:
  // The content of a recipe file. One rank reads it and sends it to the others.
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
  // The same for a file that resolved_toml() wrote. Its values keep the origins in its comments, unless they were edited.
  static Recipe parse_saved(const File& file);

  // `train.steps=200`: the right side is read as TOML, or else taken as a string.
  void set(std::string_view assignment, std::string origin = "--set");
  // For options that have their own flag: set("data.path", path, "--data").
  void set(std::string_view key, Setting value, std::string origin);

  // The options of one section: the recipe's values, and those of `options` for keys that it does not have. Checks types and ranges.
  template <typename T>
  T read(const Schema<T>& schema, T options = {}) {
    schema.assign(options, resolve(schema.section(), schema.values_of(options)));
    return options;
  }

  // The entries of a table whose keys are patterns that the user writes, sorted.
  std::map<std::string, std::string> read_patterns(const std::string& table);

  // Changes the text of a key, or the texts of a list; its origin stays. Nothing where the user did not give the key.
  void replace_text(std::string_view key, const std::function<std::string(const std::string&)>& replacement);

  bool has(std::string_view key) const;  // whether the user gave this key
  std::vector<std::string> tables_in(
      std::string_view section) const;  // "sync" -> {"dp", "island"}: tables that the user wrote there, sorted

  // Throws bad_input for the first key or section that was neither read nor is in `known`, with its origin and the nearest valid name.
  void check_all_used(const std::vector<Section>& known = {}) const;

  // Every value read so far as TOML, by section, each with its origin in a comment. Parses back to the same values, and has present names
  // where the user gave old ones.
  std::string resolved_toml() const;

  // A key whose value differs between two recipes, both already read; the values as TOML.
  struct Change {
    std::string key, before, now, origin;
  };
  std::vector<Change> changes_since(const Recipe& before) const;

  // One line for each old name or old word of the sections `known` that the user gave (Entry::old_names):
  // `tiny.toml:14: optim.clip is now optim.max_grad_norm; the old name still works`.
  std::vector<std::string> hints(const std::vector<Section>& known) const;

 private:
  struct Given {
    Setting value;
    std::string text;              // as typed, for --set: lets `--set name=12` fill a string
    std::string unsupported_type;  // "a date", "a list of tables": what no key can hold; else empty
    std::string origin;            // "tiny.toml:14", "--set"
    int64_t order = 0;             // of being given, one per file or flag: later wins between a key and its alias
    std::string saved_origin;      // parse_saved: where the value came from then; else empty
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

  // From TOML (recipe_parser.cpp). Adds everything in `text`, with origins like `name:14`.
  void add_text(std::string_view text, const std::string& name);
  // The right side of `key=value`: as TOML if it is TOML, else a string.
  void add_assignment(const std::string& key, std::string_view value, const std::string& origin);
  std::vector<Setting> resolve(const Section& section, std::vector<Setting> defaults);
  const Given* find(const Section& section, const Entry& entry, std::string& spelled) const;

  std::map<std::string, Given, std::less<>> given_;         // by full dotted key
  std::map<std::string, std::string, std::less<>> tables_;  // every table opened or implied -> origin
  std::vector<ReadSection> read_;                           // in order of first reading
  int64_t next_order_ = 0;
};

}  // namespace cairn::base
