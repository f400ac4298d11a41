// Runs a task's `predict` over any number of examples, sharded over the replicas.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "task/deployer.h"
#include "task/task.h"

namespace cairn::task {

// Returns the outputs in the order of the examples, one for each, on the CPU, on all ranks. Collective. Micro-batches do not depend on the
// number of ranks (examples 0 to batch-1, and so on; the last is padded with its last example), so the outputs are bitwise identical for
// any number of ranks.
Outputs predict_all(const Deployer& deployer, const TaskFunctions& functions, const Params& params, const Examples& examples,
                    int64_t batch);
// The task's postprocess: one text per example.
std::vector<std::string> texts_of(const TaskFunctions& functions, const Outputs& outputs, int64_t examples);

template <typename Example>
class Predictor {
 public:
  Predictor(Deployer& deployer, Task<Example> task, int64_t batch = 8) : deployer_(deployer), task_(std::move(task)), batch_(batch) {}

  Outputs predict(const Params& params, const std::vector<Example>& examples) const {
    return predict_all(deployer_, functions_of(task_), params, examples_of(task_, examples), batch_);
  }
  std::vector<std::string> texts(const Params& params, const std::vector<Example>& examples) const {
    return texts_of(functions_of(task_), predict(params, examples), static_cast<int64_t>(examples.size()));
  }

 private:
  Deployer& deployer_;
  Task<Example> task_;
  int64_t batch_;
};

}  // namespace cairn::task
