// Training of a supernet (delayed epsilon-shrinking, arXiv:2407.06167, and the schedules before it). A step runs several networks over the
// same batch, each a part of the same weights: the whole one, the smallest, and random ones. The small ones learn the outputs of the whole
// one (in-place distillation):
//
//   g = grad CE(labels, z_0) + weight(t) sum_i grad tau^2 CE(softmax(z_0 / tau), softmax(z_i / tau))
//
// z_0 is a constant in the second term, and weight(t) is 0 at first (train/supernet/shrinking.h).
#pragma once
#include "train/step_methods.h"

namespace cairn::model {
class Model;
}
namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

StepMethod supernet_method();

// Refuses depths that leave out layers of several pipeline stages.
void check_elastic_stages(const Settings& settings, const model::Model& model, const parallel::Plan& plan);

}  // namespace cairn::train
