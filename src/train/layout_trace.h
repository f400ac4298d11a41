#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "comm/label.h"
#include "mesh/named_tensor.h"
#include "train/routing_trace.h"

namespace cairn::comm {
class World;
}
namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

// The numbers of one step, to compare two layouts of the same run.
struct TracedStep {
  double loss = 0, gradient_norm = 0;
  mesh::NamedTensors gradients;   // full tensors, as the optimizer reads them
  mesh::NamedTensors parameters;  // full tensors, after the update
  // Parameters whose gradient should be identical on two ranks and is not: "model.norm.weight (ranks 0 and 1)".
  std::vector<std::string> unequal_copies;
  StepRouting routing;  // of models with experts
};

// The memory of one rank in bytes: what it keeps between steps, and the peaks during steps.
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t gradients_most = 0, gathered_most = 0, activations_most = 0;
  int64_t state() const { return parameters + gradients + optimizer; }
};

using SentBytes = std::array<int64_t, comm::kPurposes>;  // by purpose

struct LayoutTrace {
  std::vector<TracedStep> steps = {};
  std::vector<RankMemory> memory = {};  // by rank
  SentBytes sent = {};                  // by all ranks, during the steps
  int64_t elements = 0;                 // parameters of the whole model
  int64_t expert_elements = 0;          // of these, those of experts
};

// LayoutTraceOptions::plant: ring forms of context attention drop a partial result that they should merge.
inline constexpr const char* kPlantedMerge = "context.merge";

// LayoutTraceOptions::plant: layers in slices (recompute.mode = stream) forget what later slices add to the gradients of keys.
inline constexpr const char* kPlantedSlice = "stream.keys";

struct LayoutTraceOptions {
  int64_t steps = 1;
  bool tensors = true;  // false records losses and norms only, which is faster
  // Plants an error to be found: the gradient of this parameter is not summed over its copies; or kPlantedMerge, or kPlantedSlice.
  std::string plant;
  std::string cache;                                     // the folder of tokenized data
  std::shared_ptr<const parallel::Plan> plan = nullptr;  // decides the layout (given_plan.h); null: the recipe's keys do
};

// Runs the first steps of a recipe on every rank of the world, as train::run does. Rank 0 gets the tensors. Collective.
LayoutTrace trace_layout(comm::World& world, base::Recipe recipe, const LayoutTraceOptions& options);

// The first difference between two traces, in the order in which a step computes: loss, gradients in the model's order, copies of
// gradients (which must be bitwise identical), gradient norm, parameters. Tensors may differ by `tolerance` times their largest element,
// and by a hundred times that after the first update. Elements of a parameter whose gradient is within rounding of 0 are left out.
struct Difference {
  int64_t step = 0;    // from 1; 0: nothing differs
  std::string what;    // "the gradient of model.norm.weight"
  double largest = 0;  // of any element
  double scale = 0;    // the largest element of the tensor it was compared with
};
Difference first_difference(const LayoutTrace& one, const LayoutTrace& other, double tolerance);

}  // namespace cairn::train
