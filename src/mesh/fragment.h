// A range of the elements of a rank's local tensor, as ZeRO cuts it, and the boxes of the logical tensor that it consists of. With that,
// what one layout wrote is found in another without knowing either.
#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

struct Fragment {
  LocalShard local_shard;
  Interval elements;  // of the local tensor, flat
  bool operator==(const Fragment&) const = default;
};

// All elements of a tensor of this shape.
Fragment whole_tensor(const std::vector<int64_t>& shape);

// A logical box inside a fragment. Index (i, j, ...) within the box is element start + i * strides[0] + j * strides[1] + ... of the
// fragment.
struct FragmentBox {
  Box box;
  int64_t start = 0;
  std::vector<int64_t> strides;  // in elements, one per dim
  bool operator==(const FragmentBox&) const = default;
};

// The boxes of a fragment; they cover it exactly once. Empty ones are left out.
std::vector<FragmentBox> boxes_of(const Fragment& fragment);

// Where `part`, which must lie inside `whole.box`, begins; it has the same strides.
int64_t start_of(const Box& part, const FragmentBox& whole);

// A row-major tensor of this shape as one box.
FragmentBox dense(const std::vector<int64_t>& shape);

// The longest runs of consecutive elements of a box that lie one after the other in both places, as (from, to, elements). Both boxes have
// the same extents.
struct CopyRun {
  int64_t from = 0, to = 0, elements = 0;
  bool operator==(const CopyRun&) const = default;
};
std::vector<CopyRun> runs_between(const Box& part, const FragmentBox& from, const FragmentBox& to);

}  // namespace cairn::mesh
