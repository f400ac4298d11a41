#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "comm/label.h"
#include "mesh/named_tensor.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// A few steps of a run, written down so that another layout of the same run can be held against them.
struct TracedStep {
  double loss = 0, gradient_norm = 0;
  mesh::NamedTensors gradients;   // whole, as the optimizer is about to read them
  mesh::NamedTensors parameters;  // whole, after the update
  // Parameters of which two ranks that should hold the same gradient do not: "model.norm.weight (ranks 0 and 1)".
  std::vector<std::string> unequal_copies;
};

// What one rank keeps between steps, and had at most during them, in bytes.
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t gradients_most = 0, gathered_most = 0, activations_most = 0;
  int64_t state() const { return parameters + gradients + optimizer; }
};

using SentBytes = std::array<int64_t, comm::kPurposes>;  // by purpose

struct LayoutTrace {
  std::vector<TracedStep> steps = {};
  std::vector<RankMemory> memory = {};  // by rank
  SentBytes sent = {};                  // by all ranks, in the steps alone
  int64_t elements = 0;                 // parameters of the whole model
};

struct LayoutTraceOptions {
  int64_t steps = 1;
  bool tensors = true;  // losses alone are quicker
  std::string plant;    // the gradient of this parameter is not summed over its copies: a mistake to be found
  std::string cache;    // where tokenized data is kept
};

// Runs the first steps of a recipe on every rank of the world, as train::run would; rank 0 gets the recording.
LayoutTrace trace_layout(comm::World& world, base::Recipe recipe, const LayoutTraceOptions& options);

// What differs first between two recordings, in the order in which a step makes it: its loss, its gradients by the model's order, copies
// of gradients that must be equal to the bit, the gradient norm, the parameters. Tensors may differ by `tolerance` of their largest
// element, after the first update by a hundred times that.
struct Difference {
  int64_t step = 0;    // from 1; 0: nothing differs
  std::string what;    // "the gradient of model.norm.weight"
  double largest = 0;  // of any element
  double scale = 0;    // the largest element of the tensor it was compared with
};
Difference first_difference(const LayoutTrace& one, const LayoutTrace& other, double tolerance);

}  // namespace cairn::train
