#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mesh/box.h"

namespace cairn::mesh {

struct Mesh;

// Every coordinate along the axis holds the same values.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

// Each coordinate along the axis holds its own part of one dim. `pieces[c]` lists what coordinate c holds, in its storage order
// (uneven, zigzag, fused heads); empty means the even split, whose parts differ by at most one.
struct Split {
  int64_t dim = 0;
  std::vector<std::vector<Interval>> pieces;
  bool operator==(const Split&) const = default;
};

// The true value is the reduction over the axis of what the coordinates hold.
struct Partial {
  enum class Reduce { sum, max };
  Reduce reduce = Reduce::sum;
  bool operator==(const Partial&) const = default;
};

// How one tensor lies on a mesh: for each axis that says something, replicate, split or partial; replicate elsewhere.
// Splits of one dim by several axes nest, in the order listed here.
struct Placement {
  struct OnAxis {
    std::string axis;
    std::variant<Replicate, Split, Partial> how;
    bool operator==(const OnAxis&) const = default;
  };
  std::vector<OnAxis> axes;

  bool operator==(const Placement&) const = default;
};

// The even split of [0, size) into `parts`: part `index`. Sizes differ by at most one, larger parts last.
Interval even_part(int64_t size, int64_t parts, int64_t index);

// The boxes of a tensor of this shape that `rank` holds. Over all ranks the boxes of a placement without replication or
// partial axes cover the tensor exactly once.
std::vector<Box> boxes(const Placement& placement, const Mesh& mesh, int rank, const std::vector<int64_t>& shape);

// "dp: split(0), tp: replicate"; "replicated" where no axis says anything.
std::string to_string(const Placement& placement);

}  // namespace cairn::mesh
