// Scripts by which shells complete the command line, made from the tables that --help and the recipe reference are made from.
#pragma once
#include <string>
#include <vector>

#include "base/schema.h"
#include "cli/command_specs.h"

namespace cairn::cli {

// A recipe key, and the words that its value may be (none: anything).
struct KeySpec {
  std::string key;  // "data.packing"
  std::string help;
  std::vector<std::string> values;
};
std::vector<KeySpec> key_specs(const std::vector<base::Section>& sections);

// After --set come keys (outside `train` only those of data), after the argument `recipe` come TOML files, after an option without choices
// any file. `shell` is bash, zsh or fish.
std::string completion_script(const std::string& shell, const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys);

}  // namespace cairn::cli
