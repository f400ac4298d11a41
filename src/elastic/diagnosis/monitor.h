#pragma once
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "elastic/diagnosis/finding.h"
#include "elastic/diagnosis/options.h"
#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// Everything that one look at the records shows: hangs; if nothing hangs, slow links and stragglers.
std::vector<Finding> diagnose(std::span<const RankView> ranks, const DiagnosisOptions& options);

// Repeated looks. A finding is reported once, and again only after it has been gone for a while.
class Monitor {
 public:
  explicit Monitor(const DiagnosisOptions& options) : options_(options) {}
  std::vector<Finding> look(std::span<const RankView> ranks);  // those to report now

 private:
  using Culprit = std::tuple<Cause, int, int>;
  DiagnosisOptions options_;
  std::map<Culprit, int> absent_;  // reported findings, and for how many looks they have been gone
};

}  // namespace cairn::elastic
