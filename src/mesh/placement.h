#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mesh/box.h"
#include "mesh/ragged.h"

namespace cairn::mesh {

struct Mesh;

// Replicated: every coordinate along the axis holds the same values.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

// Sharded: each coordinate along the axis holds its own part of one dim. `pieces[c]` lists the intervals of coordinate c in storage order
// (uneven, zigzag, fused heads: splits.h). Empty means the even split, whose first parts may be one longer.
struct Split {
  int64_t dim = 0;
  std::vector<std::vector<Interval>> pieces = {};
  bool operator==(const Split&) const = default;
};

// Pending reduction: the value is the reduction, over the axis, of the terms that the coordinates hold.
struct Partial {
  enum class Reduce { sum, max };
  Reduce reduce = Reduce::sum;
  bool operator==(const Partial&) const = default;
};

// How one tensor lies on a mesh (PyTorch: DTensor placements, OneFlow: SBP): replicate, split, partial or ragged for each listed axis, and
// replicate for the others. Several axes may split the same dim. Then the splits nest: the first listed axis is outermost, and the
// intervals of an inner axis count within the concatenation of what the outer axis leaves. A value: it prints, parses and compares.
struct Placement {
  using How = std::variant<Replicate, Split, Partial, Ragged>;
  struct OnAxis {
    std::string axis;
    How how;
    bool operator==(const OnAxis&) const = default;
  };
  std::vector<OnAxis> axes;

  // The entry of one axis; Replicate where there is none.
  How on(std::string_view axis) const;

  bool operator==(const Placement&) const = default;
};

// Whether the axis holds terms of a reduction rather than values.
bool is_partial(const Placement::How& how);

// The non-empty boxes of a tensor of this shape that `rank` holds; none where the mesh does not contain the rank. If every axis splits, the
// boxes of all ranks cover the tensor exactly once.
std::vector<Box> boxes(const Placement& placement, const Mesh& mesh, int rank, const std::vector<int64_t>& shape);

// Refuses a placement that does not fit a tensor of this shape on this mesh: unknown or repeated axes, dims out of range, intervals that
// overlap or leave gaps, partial sums beside partial maxima, partial along an axis on which some ranks lack peers.
void check(const Placement& placement, const Mesh& mesh, const std::vector<int64_t>& shape);

// Refuses partial placements, for readers that need reduced values, such as snapshots. `what` names the tensor.
void check_not_partial(const Placement& placement, std::string_view what);

// "dp: split(0), tp: replicate" and back; "replicated" where no axis is listed. Intervals are written by coordinate
// ("split(0, 0:2+6:8|2:6|-)"), owners by id ("ragged(0, 0|1|0+2; lengths 3,4,5; partial)"). Plans are saved with this text.
std::string to_string(const Placement& placement);
Placement parse_placement(std::string_view text);

}  // namespace cairn::mesh
