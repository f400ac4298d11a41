#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::base {
class Log;
}

namespace cairn::study {

// `cairn generate` along tp as real processes, the standard wiring and the ladder in turn, on models with random weights.
struct GenerationRun {
  int tp = 2;
  std::string links = {};  // as --links takes them; empty: the machine's own
  int rounds = 3;
  int64_t layers = 8, embed = 128;
  int64_t tokens = 32;  // greedily, after a prompt of 4
};
struct WiringRates {
  std::vector<double> standard, ladder;  // tokens/s, by round
  double ratio() const;                  // of the best rounds, ladder to standard: other programs only slow a round down
};
// Every run must give the token ids of one rank: else bad_input. `program`: the file of `cairn`; `scratch`: a folder.
WiringRates measure_generation(const std::string& program, const std::string& scratch, const GenerationRun& run, base::Log& log);

}  // namespace cairn::study
