// The plan of an HDEE study: which expert trains how long, so that all modes cost the same.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "study/hdee_options.h"

namespace cairn::study {

// What a size costs.
struct SizeFacts {
  int64_t parameters = 0;         // all
  int64_t matmul_parameters = 0;  // parameters used in matrix products: the head, but no embedding table
  int64_t bytes = 0;              // parameters, gradients, optimizer state and the activations of a micro-batch, fp32
};
SizeFacts facts_of(const model::ModelOptions& size, int64_t vocab, int64_t length, int64_t micro_batch);

// The expert of one line in one mode: a chain of runs, one per domain.
struct PlannedExpert {
  std::string line, size;
  int64_t steps_asked = 0;  // on each domain, before the limit of epochs
  std::vector<std::string> domains;
  std::vector<int64_t> steps = {};  // on each
  SizeFacts facts = {};
  int64_t tokens = 0;
  double flops = 0;  // 6 * matmul_parameters * tokens

  // Equal for experts with the same training: two modes share them.
  std::string id() const;
};

// The size of a step, and the tokens of each domain.
struct StudyData {
  int64_t vocab = 0, length = 0, batch = 0, micro_batch = 0;
  std::map<std::string, int64_t> tokens;  // to train on, by domain
};

struct ModePlan {
  std::string mode;
  std::vector<PlannedExpert> experts = {};  // by line
  double flops = 0;
  double share = 1;  // of the budget
};

struct HdeePlan {
  std::vector<ModePlan> modes;     // uniform first, even if it is not trained
  double budget = 0;               // FLOPs of all experts of a mode
  std::vector<std::string> notes;  // what was solved for, and which steps were reduced
  const ModePlan& mode(const std::string& name) const;
};

// Sets what budget.solve leaves open in the recipe. Refuses a mode that misses the budget by more than its tolerance, and says by how much
// and what would fit.
HdeePlan plan_hdee(HdeeRecipe& recipe, const StudyData& data);

// The dearest size and steps for the most difficult line, and so on down: what there is of either is divided anew, so that the total
// stays what it was. `difficulty` by line.
void assign_by_difficulty(HdeeRecipe& recipe, const std::map<std::string, double>& difficulty, const StudyData& data);

}  // namespace cairn::study
