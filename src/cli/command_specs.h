// Commands and options as values, read from the parser. Shell completion scripts are made from them.
#pragma once
#include <string>
#include <vector>

namespace cairn::cli {

// An option ("-h", "--help") or, under its name alone, an argument by position ("recipe").
struct OptionSpec {
  std::vector<std::string> names;
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices = {};  // the values it accepts; empty: any
};

struct SubcommandSpec {
  std::string name, help;
};

struct CommandSpec {
  std::string path;  // "snapshot export"; empty: the program itself
  std::string help;
  std::vector<OptionSpec> options, arguments;
  std::vector<SubcommandSpec> commands;  // below it
};

}  // namespace cairn::cli
