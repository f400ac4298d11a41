// The claims of one proof, measured at several seeds: how far the values lie apart, and at how many seeds each claim holds.
#pragma once
#include <string>
#include <vector>

#include "study/claims.h"

namespace cairn::study {

struct ClaimSpread {
  std::string claim;             // as the first seed says it
  std::string threshold;         // likewise
  std::vector<double> measured;  // by seed
  size_t passes = 0;             // seeds at which it holds

  double low() const;
  double high() const;
  bool hold() const { return !measured.empty() && passes == measured.size(); }
};

struct SpreadFindings {
  std::vector<uint64_t> seeds;
  std::vector<ClaimSpread> claims;
  std::vector<Skipped> skipped;     // of any seed
  std::vector<std::string> errors;  // of seeds at which the proof ended with one: "seed 3: ..."
  bool hold() const;                // every claim at every seed, and there is one
};

// A claim's text may hold figures that differ by seed: claims of equal place are the same claim where all seeds have equally many, else
// claims of equal text.
class SpreadCollector {
 public:
  void add(uint64_t seed, const Findings& findings);
  void add_error(uint64_t seed, const std::string& what);
  SpreadFindings collect() const;

 private:
  std::vector<std::pair<uint64_t, Findings>> runs_;
  std::vector<std::string> errors_;
  std::vector<uint64_t> seeds_;
};

// {"slug", "seeds", "claims": [{"claim", "threshold", "measured": [...], "passes", "pass"}], "skipped", "errors", "seconds"}
std::string to_json(const std::string& slug, const SpreadFindings& findings, double seconds);
// Tables for people: for a terminal, and as Markdown, with the command that measures it.
std::string to_table(const SpreadFindings& findings);
std::string to_markdown(const std::string& slug, const std::string& about, const std::string& command, const SpreadFindings& findings);

}  // namespace cairn::study
