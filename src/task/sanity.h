// A look at a task before it trains for hours: does every function return what it should?
#pragma once
#include <string>
#include <vector>

#include "task/calls.h"
#include "task/deployer.h"

namespace cairn::task {

// One batch through loss and, where there are such, predict, postprocess and metric; refuses a loss that is no scalar or not finite and
// what calls.h refuses. ATen's generators are left as they were. Returns the names of the metrics that evaluations will have.
std::vector<std::string> check_task(const Deployer& deployer, const TaskFunctions& functions, const Params& params,
                                    const Examples& examples, int64_t batch);

}  // namespace cairn::task
