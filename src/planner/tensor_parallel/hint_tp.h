#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "planner/tensor_parallel/auto_tp.h"

namespace cairn::planner {

// A parameter of which nothing but this is known. Its name is a path, with dots or slashes.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Tensor parallelism by names, for a list of parameters without a graph: the matching of RedCoast's own code. Parameters whose last two
// words are the same share one rule, and a dim is split only where all of them can be, evenly. A guess: auto_tp knows.
//
// Matrices called "kernel" are stored [in, out], all others [out, in].
std::vector<RuledPlacement> hint_tp(const std::vector<NamedShape>& parameters, int ranks);

}  // namespace cairn::planner
