// MoSA (arXiv:2312.02923): adapters in modules, of which each training pass uses one, drawn for each matrix; two passes over a batch with
// draws and dropout of their own, which are made to agree:
//
//   loss(z1) + second_ce loss(z2) + consistency / 2 (KL(sg p2 || p1) + KL(sg p1 || p2)),   p = softmax(z), sg: a constant
//
// Modules that no pass of a step draws stand still: their values, moments and decay, and they are not sent.
#pragma once
#include <memory>

#include "train/step_methods.h"

namespace cairn::train {

class BetweenSteps;

StepMethod mosa_method();

// Freezes and activates modules as the passes of the next step draw them. Null where the model has no adapters in modules.
std::unique_ptr<BetweenSteps> make_module_turns(Job& job, comm::World& world);

}  // namespace cairn::train
