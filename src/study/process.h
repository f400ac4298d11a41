#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::study {

// The result of a finished process.
struct ProcessResult {
  int exit_code = 0;  // 128 + signal where it was killed
  double seconds = 0;
  int64_t peak_bytes = 0;  // peak resident memory
  std::string output;      // its last 4,000 characters, standard output and error together
};

// Runs a program and waits for it. `argv[0]` is searched in PATH. `on_start` gets the process id. Thread-safe.
ProcessResult run_program(const std::vector<std::string>& argv, const std::string& log_file,
                          const std::function<void(int pid)>& on_start = {});

// The same with a time limit: then the process gets SIGTERM, and SIGKILL some seconds later. The exit code is 128 + signal, or what the
// process returned after SIGTERM.
ProcessResult run_program_for(std::chrono::duration<double> limit, const std::vector<std::string>& argv, const std::string& log_file,
                              const std::function<void(int pid)>& on_start = {});

}  // namespace cairn::study
