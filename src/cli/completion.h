// Shell completion scripts, made from the tables that also make --help and the recipe reference.
#pragma once
#include <string>
#include <vector>

#include "base/schema.h"
#include "cli/command_specs.h"

namespace cairn::cli {

// A recipe key and the values it accepts (empty: any).
struct KeySpec {
  std::string key;  // "data.packing"
  std::string help;
  std::vector<std::string> values;
};
std::vector<KeySpec> key_specs(const std::vector<base::Section>& sections);

// The script for a shell: bash, zsh or fish. It completes --set with recipe keys (for commands other than `train` and `plan`, only data.*),
// the argument `recipe` with TOML files, and options without choices with any file.
std::string completion_script(const std::string& shell, const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys);

}  // namespace cairn::cli
