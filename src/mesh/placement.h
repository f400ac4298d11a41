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

// Every coordinate along the axis holds the same values.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

// Each coordinate along the axis holds its own part of one dim. `pieces[c]` lists what coordinate c holds, in its storage order
// (uneven, zigzag, fused heads: see splits.h); empty means the even split, whose first parts are one longer.
struct Split {
  int64_t dim = 0;
  std::vector<std::vector<Interval>> pieces = {};
  bool operator==(const Split&) const = default;
};

// The true value is the reduction over the axis of what the coordinates hold.
struct Partial {
  enum class Reduce { sum, max };
  Reduce reduce = Reduce::sum;
  bool operator==(const Partial&) const = default;
};

// How one tensor lies on a mesh: for each axis that says something, replicate, split, partial or ragged; replicate elsewhere.
// Splits of one dim by several axes nest, the first listed outermost: what is inside counts in what is left outside, put together.
struct Placement {
  using How = std::variant<Replicate, Split, Partial, Ragged>;
  struct OnAxis {
    std::string axis;
    How how;
    bool operator==(const OnAxis&) const = default;
  };
  std::vector<OnAxis> axes;

  // What is said about one axis; Replicate where nothing is.
  How on(std::string_view axis) const;

  bool operator==(const Placement&) const = default;
};

// Whether ranks along the axis hold terms of a reduction rather than values.
bool is_partial(const Placement::How& how);

// The boxes of a tensor of this shape that `rank` holds, none of them empty; none where the mesh does not contain the rank. Over all ranks
// the boxes of a placement without replication or partial axes cover the tensor exactly once.
std::vector<Box> boxes(const Placement& placement, const Mesh& mesh, int rank, const std::vector<int64_t>& shape);

// Refuses a placement that does not fit a tensor of this shape on this mesh: unknown or repeated axes, dims out of range, intervals that
// overlap or leave gaps, partial sums beside partial maxima, partial along an axis on which some ranks lack peers.
void check(const Placement& placement, const Mesh& mesh, const std::vector<int64_t>& shape);

// Refuses partial values: for whoever needs true ones, such as a snapshot. `what` names the tensor.
void check_not_partial(const Placement& placement, std::string_view what);

// "dp: split(0), tp: replicate" and back; "replicated" where no axis says anything. Intervals are written by coordinate
// ("split(0, 0:2+6:8|2:6|-)"), owners by id ("ragged(0, 0|1|0+2; lengths 3,4,5; partial)").
std::string to_string(const Placement& placement);
Placement parse_placement(std::string_view text);

}  // namespace cairn::mesh
