// `cairn-lab`, the second program: proofs, benches, studies and examples. It lies beside `cairn`, which need not be built with it.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace cairn::cli {

// Replaces this process by `cairn-lab` with these arguments. Where it was not built, says how to build it.
int exec_lab(const std::vector<std::string>& command_line);

// The names that a command of `cairn-lab` takes as its first argument, by command: "prove", "bench", "example". Nothing where it was not
// built.
std::map<std::string, std::vector<std::string>> lab_names();

// The argument by which `cairn-lab` lists them, a command and a name on each line.
inline constexpr const char* kListNames = "--list-names";

}  // namespace cairn::cli
