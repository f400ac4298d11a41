#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::study {

// How a program that was run to its end came out.
struct ProcessResult {
  int exit_code = 0;  // 128 + signal where it was killed
  double seconds = 0;
  int64_t peak_bytes = 0;  // the most memory it ever held
  std::string output;      // its last 4,000 characters, standard output and error together
};

// Runs a program and waits for it. The first of `argv` is looked for in PATH. `on_start` hears its process id. Any number of threads may
// each wait for one.
ProcessResult run_program(const std::vector<std::string>& argv, const std::string& log_file,
                          const std::function<void(int pid)>& on_start = {});

// The same, but after so long the program is asked to end, and made to some seconds later: its exit code tells (128 + SIGTERM or SIGKILL,
// or what it made of being asked).
ProcessResult run_program_for(std::chrono::duration<double> limit, const std::vector<std::string>& argv, const std::string& log_file,
                              const std::function<void(int pid)>& on_start = {});

}  // namespace cairn::study
