// Ordinary training (train.method = "gradient"): backward passes over micro-batches, then one update by the optimizer.
#pragma once
#include <memory>

#include "train/step.h"
#include "train/step_methods.h"

namespace cairn::train {

class CudaGraphStep;

StepMethod gradient_method();

// Like make_step (step.h), but steps run as CUDA graphs where CudaGraphStep::should_replay says so.
std::unique_ptr<Step> make_cuda_graph_step(Execution execution, std::unique_ptr<CudaGraphStep> graphs);

}  // namespace cairn::train
