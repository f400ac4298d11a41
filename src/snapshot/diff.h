// What two snapshots have in common: `cairn snapshot diff`. Tensors are compared by section and name, whichever ranks wrote them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::snapshot {

class OpenSnapshot;

struct TensorDifference {
  std::string section, name;
  std::string what = {};  // why the values cannot be compared: "only in A", "F32 [3, 4] there, ..."; empty: values differ
  int64_t elements = 0;   // that differ, bit by bit
  double largest = 0;     // the largest absolute difference; NaN where one of the two is
};

struct SnapshotDiff {
  int64_t tensors = 0, elements = 0;  // that were compared
  std::vector<TensorDifference> tensors_differ;
  std::vector<std::string> texts_differ;  // files that belong to the model or to the progress of training
  std::vector<std::string> layout_files;  // files that say how and when it was trained, and differ: training/plan.json
  bool same() const { return tensors_differ.empty() && texts_differ.empty(); }
};

SnapshotDiff diff(const OpenSnapshot& a, const OpenSnapshot& b);

}  // namespace cairn::snapshot
