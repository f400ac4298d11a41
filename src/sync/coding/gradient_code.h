// Gradient codes: n workers, n parts of a batch, and any s workers may be missing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace cairn::sync {

// automatic: the repetition code where s + 1 divides n, else the random code.
enum class CodeKind { automatic, repetition, random };
inline constexpr base::EnumName<CodeKind> kCodeKindNames[] = {
    {CodeKind::automatic, "auto"}, {CodeKind::repetition, "repetition"}, {CodeKind::random, "random"}};
inline const char* name_of(CodeKind value) { return base::enum_name(kCodeKindNames, value); }

// How the sum of all parts is made of replies: sum over workers of weights[worker] * reply. Weights of workers that are not live are 0.
struct Decoding {
  std::vector<double> weights = {};  // empty: these replies do not suffice
  double condition = 1;              // of the matrix that was solved
};

// Which parts each worker computes and with which coefficients: reply i = sum over its parts j of b_ij g_j, with g_j the gradient of part
// j. Immutable. The same on all ranks for the same arguments.
class GradientCode {
 public:
  static constexpr double kConditionMax = 1e6;

  // Refuses s >= n, and the repetition code where s + 1 does not divide n; `key` is the recipe key that messages name.
  GradientCode(CodeKind kind, int workers, int stragglers, uint64_t seed, const std::string& key = "stragglers");

  int workers() const { return workers_; }
  int stragglers() const { return stragglers_; }
  bool repetition() const { return repetition_; }
  // The s + 1 parts of a worker, and the coefficient of each.
  const std::vector<int>& parts(int worker) const { return parts_[static_cast<size_t>(worker)]; }
  const std::vector<double>& coefficients(int worker) const { return coefficients_[static_cast<size_t>(worker)]; }

  // Any n - s live workers suffice. With the repetition code one of each group does.
  Decoding decode(const std::vector<char>& live) const;
  bool decodes(const std::vector<char>& live) const;

 private:
  void draw(uint64_t seed, uint64_t attempt);
  void choose_draw(uint64_t seed, const std::string& key);
  double worst_amplification(uint64_t seed, int64_t most, double bound);
  Decoding solve(const std::vector<char>& live) const;

  int workers_, stragglers_;
  bool repetition_ = false;
  bool all_sets_seen_ = false;  // every n - s workers have been found to suffice
  std::vector<std::vector<int>> parts_;
  std::vector<std::vector<double>> coefficients_;
};

}  // namespace cairn::sync
