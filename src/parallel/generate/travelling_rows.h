// The rows of one layer with experts on their way between ranks, as bytes: who goes where, in which order, and what an expert gets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/row_groups.h"
#include "mesh/placement.h"

namespace cairn::parallel {

// Who holds which expert of a layer.
struct ExpertRanks {
  std::vector<int> rank;       // by expert
  std::vector<int64_t> local;  // by expert: its place among this rank's; -1: it is elsewhere
  int64_t here = 0;            // experts of this rank
};
ExpertRanks expert_ranks(const mesh::Placement& placement, int rank);

// A message holds rows of equal size: four int32 (number, slot, where the result is wanted, expert), the row's experts (int32) and their
// weights (fp32), then its values. Slot -1: the row itself, of the residual stream. Otherwise a copy of its normed values for one expert.
class TravellingRows {
 public:
  TravellingRows(int ranks, int64_t top_k, const at::TensorOptions& options, int64_t embed);

  struct Leaving {
    const std::vector<int64_t>& numbers;
    const at::Tensor &values, &normed;  // [n, embed]
    const at::Tensor &ids, &weights;    // [n, top_k]
  };
  // The messages to each rank, this one included: rows go to `stay`, or (-1) to the rank of their first expert; copies go to the ranks of
  // experts that are not where the row goes. Returns how many rows leave this rank or have an expert on another one.
  int64_t pack(const Leaving& rows, const ExpertRanks& experts, int stay);
  std::vector<at::Tensor> take_parts() { return std::exchange(parts_, {}); }
  // Messages by sender. Rows are then in the order of their numbers, copies in that of their arrival.
  void unpack(const std::vector<at::Tensor>& arrived);

  const std::vector<int64_t>& numbers() const { return numbers_; }
  const at::Tensor& residents() const { return residents_; }  // the rows that are here now, [n, embed]
  const at::Tensor& weights() const { return weights_; }      // [n, top_k]

  // What this rank's experts compute: of `normed` (residents) and copies, sorted by local expert.
  struct ExpertInput {
    at::Tensor rows;
    kernels::RowGroups groups;
    std::vector<int64_t> source;  // of each row: slot (resident * top_k + k), or -1 - copy
  };
  ExpertInput by_expert(const at::Tensor& normed, const ExpertRanks& experts) const;
  // [n, top_k, embed]: the results for residents. Those of copies become the messages of take_parts().
  at::Tensor collect(const at::Tensor& results, const ExpertInput& input);
  // Puts the results that other ranks computed in place.
  void take_results(const std::vector<at::Tensor>& arrived, const at::Tensor& results) const;

 private:
  struct Copy {
    int32_t number, slot, home, expert;
  };
  int64_t value_bytes() const { return embed_ * static_cast<int64_t>(item_bytes_); }

  int ranks_;
  int64_t top_k_;
  at::TensorOptions options_;
  int64_t embed_;
  size_t item_bytes_;
  std::vector<at::Tensor> parts_;
  std::vector<int64_t> numbers_, ids_;  // of residents
  at::Tensor residents_, weights_, copied_;
  std::vector<Copy> copies_;
};

}  // namespace cairn::parallel
