// Hostile inputs: how each is made, the command that reads it, and the answer that the program must give.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "study/process.h"

namespace cairn::study {

// The content of a file, as short texts with repeat counts, so that large files are described in little memory.
class Bytes {
 public:
  Bytes(std::string text) : parts_{{std::move(text), 1}} {}
  Bytes(const char* text) : Bytes(std::string(text)) {}
  Bytes(std::string text, int64_t times) : parts_{{std::move(text), times}} {}
  int64_t size() const;
  void write(std::ostream& out) const;
  std::string text() const;  // of short content
  friend Bytes operator+(Bytes a, const Bytes& b) {
    a.parts_.insert(a.parts_.end(), b.parts_.begin(), b.parts_.end());
    return a;
  }

 private:
  std::vector<std::pair<std::string, int64_t>> parts_;
};
inline Bytes operator+(const char* a, const Bytes& b) { return Bytes(a) + b; }
inline Bytes operator+(const std::string& a, const Bytes& b) { return Bytes(a) + b; }

// A folder in which one bad input is made. Valid files to damage are copied from `fixtures`.
class HostileFolder {
 public:
  HostileFolder(std::filesystem::path path, std::filesystem::path fixtures) : path_(std::move(path)), fixtures_(std::move(fixtures)) {}

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  void file(const std::string& name, const Bytes& bytes) const;  // missing folders are made
  void folder(const std::string& name) const;
  void sparse(const std::string& name, std::string_view beginning, int64_t bytes) const;  // followed by zeros, which take no disk space
  void pipe(const std::string& name) const;                                               // opening it for reading would block for ever
  void link(const std::string& name, const std::string& to) const;
  void remove(const std::string& name) const;
  void good(const std::string& name, const std::string& as) const;  // copies a fixture
  std::string text(const std::string& name) const;
  void replace(const std::string& name, std::string_view from, std::string_view to) const;  // in a file; `from` must be there
  void cut(const std::string& name, int64_t bytes) const;                                   // keeps the first `bytes` bytes
  void flip(const std::string& name, int64_t at) const;                                     // inverts a byte; negative: from the end

 private:
  std::filesystem::path path_, fixtures_;
};

struct HostileCase {
  std::string reader;  // the reader under test: "safetensors"
  std::string name;    // "header_length_beyond_file"
  std::vector<std::string> arguments;
  std::function<void(const HostileFolder&)> make;
  std::vector<std::string> said;  // substrings that the message must contain
  Bytes input = "";               // on standard input
  bool full = false;              // takes seconds to make: only in full runs
};

// All cases. The lists lie in proofs/hostile_*.cpp.
const std::vector<HostileCase>& hostile_cases();
// Makes the fixtures: a model directory "model", an adapter "adapter", a run "run".
void make_hostile_fixtures(const std::filesystem::path& fixtures);

struct HostileOutcome {
  int exit_code = 0;
  double seconds = 0;
  int64_t peak_bytes = 0;
  std::string message;  // the line that begins with "cairn:"
  std::string trouble;  // what is wrong with the answer: "exit code 3", "does not say \"layers\""; empty: nothing
};

// One run of the program in a folder, with its own cache, standard input from a file, and all output to another.
struct HostileRun {
  std::vector<std::string> arguments;
  std::string folder, cache, input, log;
};
using HostileRunner = std::function<ProcessResult(const HostileRun&)>;
// Runs each case as a process with a limit of 20 s.
HostileRunner hostile_process(std::string program);

// Runs a case in a new folder under `scratch`, and removes the folder. Checks everything but time and memory.
HostileOutcome run_hostile(const HostileCase& one, const HostileRunner& run, const std::filesystem::path& scratch,
                           const std::filesystem::path& fixtures);

}  // namespace cairn::study
