#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace cairn::cli {

// The program: parses the arguments, runs the command, and returns the exit code. 2: wrong recipe or arguments, 3: failed run,
// 4: lost peer.
int run(int argc, char** argv);

// Each command adds itself to the parser; what it parsed lives in the returned function, which runs it and gives the exit code.
using Command = std::function<int()>;
Command add_train(CLI::App& app, const std::vector<std::string>& arguments);
Command add_generate(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_version(CLI::App& app);
Command add_reference(CLI::App& app);
Command add_prove(CLI::App& app);
Command add_bench(CLI::App& app);

}  // namespace cairn::cli
