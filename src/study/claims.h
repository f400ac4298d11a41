#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::base {
class Log;
}

namespace cairn::study {

// One claim of a published system, measured: the baseline, Cairn's value, and the threshold.
struct Claim {
  std::string claim;
  double baseline = 0;
  double measured = 0;
  std::string threshold;  // in words and numbers: "at most 1e-05"
  bool pass = false;
};

// A claim that cannot be measured here, and why. It never counts as passed.
struct Skipped {
  std::string claim;
  std::string reason;
};

// The inputs of a proof.
struct ProofOptions {
  uint64_t seed = 1;
  std::string data;           // a text file to measure on; empty: the built-in stories
  bool full = false;          // may take longer than five minutes
  std::string scratch;        // a folder of its own, empty, removed afterwards
  std::string program = {};   // the file of `cairn`, for proofs that start it
  std::string pictures = {};  // a folder for what it draws; empty: it draws nothing
};

// The results of a proof, collected while it runs.
class Findings {
 public:
  // The measured value must be at most / at least the bound.
  void at_most(std::string claim, double baseline, double measured, double bound);
  void at_least(std::string claim, double baseline, double measured, double bound);
  void skip(std::string claim, std::string reason);

  const std::vector<Claim>& claims() const { return claims_; }
  const std::vector<Skipped>& skipped() const { return skipped_; }
  // True if at least one claim was measured and none failed.
  bool hold() const;

 private:
  std::vector<Claim> claims_;
  std::vector<Skipped> skipped_;
};

// One published system's proof: its claims, measured against a fair baseline in the same run.
struct Proof {
  std::string slug;
  std::string about;  // one line
  void (*prove)(const ProofOptions&, Findings&, base::Log&);
  void (*prove_on_gpu)(const ProofOptions&, Findings&, base::Log&) = nullptr;  // the claims about a GPU; null: there are none
};

// All proofs. The list is in proofs/proofs.cpp.
const std::vector<Proof>& proofs();

// {"slug", "claims": [...], "skipped": [...], "seconds"}
std::string to_json(const std::string& slug, const Findings& findings, double seconds);
// A table for people.
std::string to_table(const Findings& findings);

}  // namespace cairn::study
