#pragma once
#include <span>
#include <vector>

#include "elastic/diagnosis/finding.h"
#include "elastic/diagnosis/options.h"
#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// Who holds up the ranks that wait for too long; hang.cpp has the method. Empty: nobody waits for too long. The one that has stood still
// for longest comes first.
std::vector<Finding> find_hang(std::span<const RankView> ranks, const DiagnosisOptions& options);

}  // namespace cairn::elastic
