#pragma once
#include <span>
#include <vector>

#include "elastic/diagnosis/finding.h"
#include "elastic/diagnosis/options.h"
#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// Ranks for which others with the same work wait in step after step: they compute longer, or their data comes late.
std::vector<Finding> find_stragglers(std::span<const RankView> ranks, const DiagnosisOptions& options);

}  // namespace cairn::elastic
