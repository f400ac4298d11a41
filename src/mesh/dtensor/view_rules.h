// How the placement of a tensor follows it through operations that only rearrange it: views, slices, concatenations.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/placement.h"

namespace cairn::mesh {

// The split of a tensor after it is viewed with another shape, without moving anything; none where the parts of a rank would not be parts
// of one dim.
std::optional<Split> viewed(const Split& split, const std::vector<int64_t>& from, const std::vector<int64_t>& to, int ranks);

// The indices [begin, end) of the split dim: what each rank has of them, and the place of the first one in this rank's part.
struct SlicedSplit {
  Split split;
  Interval local;
};
SlicedSplit sliced(const Split& split, int64_t begin, int64_t end, int rank);

// Several tensors one after the other along their split dim.
Split concatenated(const std::vector<Split>& splits, const std::vector<int64_t>& sizes);

}  // namespace cairn::mesh
