// Runs a task's `predict` over any number of examples, shared out over the replicas: outputs in the order of the examples, one for each.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "task/deployer.h"
#include "task/task.h"

namespace cairn::task {

// Micro-batches are the same for any number of ranks (examples 0 to batch-1, and so on; the last is filled up with its last example), so
// the outputs have the same bits too. They are gathered, put in order by the places that went with them, and fillers are dropped; all ranks
// get all of them, on the CPU. Collective.
Outputs predict_all(const Deployer& deployer, const TaskFunctions& functions, const Params& params, const Examples& examples,
                    int64_t batch);
// What the task's postprocess makes of them: a text for each example.
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
