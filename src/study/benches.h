#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::base {
class Log;
}

namespace cairn::study {

// One case of a bench: Cairn ("ours") and the peer, measured alternately in one run.
struct BenchRow {
  std::string case_name;
  double ours = 0;
  double peer = 0;
  std::string unit;
  double ratio = 0;   // above 1: ours is better
  double spread = 0;  // of the ratio over the repetitions: (highest - lowest) / median
  double goal = 0;    // the ratio must be at least this; 0: the row is for information
  bool pass = false;
  bool measured = true;
};

struct BenchOptions {
  std::string only;                // one case; empty: all
  std::string data;                // a text to measure on, where a bench reads one; empty: its own
  int64_t steps = 0;               // of each run, where a bench trains; 0: as many as the case has
  std::string precision = "bf16";  // of passes, where a bench has a choice
  bool kernels = false;            // also record which kernels use the time (gpu)
  std::vector<std::string> sets;   // recipe keys of Cairn's own runs (gpu)
  double limit_s = 0;              // seconds for each case, where a bench has a limit; 0: the case's own
  std::string out;                 // where pictures and rows of measurements are kept; empty: nowhere
  std::string program;             // the file of `cairn`, for benches that start it
  std::string cache;               // where a peer's environment is kept
  std::string scratch;             // a folder of its own, empty, removed afterwards
};

struct Bench {
  std::string name;
  std::string about;
  std::vector<BenchRow> (*measure)(const BenchOptions&, base::Log&);
};

// All benches. The list is in bench/benches.cpp.
const std::vector<Bench>& benches();

// {"bench", "rows": [{"case", "ours", "peer", "unit", "ratio", "spread", "goal", "pass"}]}
std::string to_json(const std::string& bench, const std::vector<BenchRow>& rows);
std::string to_table(const std::vector<BenchRow>& rows);

// A row from paired measurements: medians, ratio of the medians, spread of the paired ratios.
enum class Better { higher, lower };
BenchRow compare(std::string case_name, std::vector<double> ours, std::vector<double> peer, std::string unit, Better better, double goal);

}  // namespace cairn::study
