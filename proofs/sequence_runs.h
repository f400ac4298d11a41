// Training on sequences of given lengths, on a simulated network whose clock also passes while blocks compute: for proofs of step plans.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "comm/link_model.h"
#include "mesh/named_tensor.h"
#include "parallel/step_plan/step_plan.h"

namespace cairn::study {

struct ProofOptions;

// A text of documents with so many bytes each, in a file of its own in the proof's scratch folder. Returns the file.
std::string write_documents(const ProofOptions& options, const std::string& name, const std::vector<int64_t>& lengths);

// How many samples the recipe's data has for training.
int64_t samples_of(const base::Recipe& recipe);

// One run of the trainer. Ranks are threads.
struct SequenceRun {
  base::Recipe recipe;
  int ranks = 1;
  int64_t steps = 1;
  comm::LinkModel link = {};
  double flops_per_s = 0;                       // of each rank: what blocks take on the clock for their FLOPs; 0: no time
  std::optional<parallel::StepPlan> plan = {};  // of the first step, in place of the planner's
};

// One pass of a rank.
struct PassTime {
  double begin_s = 0, end_s = 0;  // on the network's clock
  double cpu_s = 0;               // of this rank's thread, in its blocks
};

struct SequenceStep {
  double step_s = 0;  // on the network's clock
  double loss = 0;
  double data_wait_s = 0, plan_s = 0;              // real time: the step's wait for its batch; what its plan took
  parallel::StepPlan plan = {};                    // where there are plans
  std::vector<std::vector<PassTime>> passes = {};  // by rank
};

struct SequenceResult {
  std::vector<SequenceStep> steps;
  mesh::NamedTensors gradients;                            // of the first step, whole
  std::map<std::pair<int, int>, int64_t> attention_bytes;  // by sender and receiver, of all steps
  int64_t attention_total() const;
};
SequenceResult run_sequences(const SequenceRun& run);

// The largest difference of two lists of tensors, of the largest element of each.
double largest_relative_error(const mesh::NamedTensors& a, const mesh::NamedTensors& b);

// Pearson's r.
double correlation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace cairn::study
