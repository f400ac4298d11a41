#pragma once
#include <string>
#include <vector>

namespace cairn::cli {

// The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; found without starting CUDA.
std::vector<std::string> visible_gpus();

// Lets this process see one of them only: each rank its own, in turn where ranks are more than GPUs. Before CUDA starts.
void select_gpu(int local_rank);

}  // namespace cairn::cli
