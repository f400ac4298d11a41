#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "elastic/diagnosis/finding.h"
#include "elastic/diagnosis/options.h"
#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// How long messages from rank x to rank y took, as a multiple of what messages of that size usually take (the median over all pairs that
// lie as this one does: within a machine, or between machines). NaN: too few messages.
struct DelayMatrix {
  int ranks = 0;
  std::vector<double> ratio;      // [x][y]
  std::vector<double> excess_us;  // by which a message took longer than usual, median
  std::vector<double> us_per_mb;  // as measured, median

  size_t at(int x, int y) const { return static_cast<size_t>(x) * static_cast<size_t>(ranks) + static_cast<size_t>(y); }
  bool empty() const;
};

// From the messages of each pair that lie `skip` to `skip + window` before its last one.
DelayMatrix delay_matrix(std::span<const RankView> ranks, int64_t window, int64_t skip = 0);

// Rows, columns and cells of the matrix that are high: slow senders, receivers and paths.
std::vector<Finding> slow_links_in(const DelayMatrix& matrix, double slow_ratio);

// Those that are high in each of the last three windows.
std::vector<Finding> find_slow_links(std::span<const RankView> ranks, const DiagnosisOptions& options);

std::string to_text(const DelayMatrix& matrix);  // a table for people; empty for an empty matrix

}  // namespace cairn::elastic
