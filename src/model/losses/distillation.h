#pragma once
#include <memory>

#include "model/objective.h"

namespace cairn::model {

// The value with the logits of a teacher: another pass over the same batch (train/step_passes.h).
inline constexpr const char* kTeacherLogits = "teacher.logits";

// Distillation (Hinton et al., arXiv:1503.02531): the cross entropy between the teacher's probabilities and those of "logits", without
// labels. With the temperature t and q = softmax(teacher / t), a constant:
//
//   loss = t^2 sum over rows with a target of CE(q, softmax(logits / t))
//
// in fp32. Along tp the vocabulary may be sharded.
std::unique_ptr<Objective> make_distillation(double temperature, Objective::Separates over);

}  // namespace cairn::model
