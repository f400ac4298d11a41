// The list of examples. A new one is a file beside this and one line here.
#include "examples/examples.h"

namespace cairn::examples {

const std::vector<Example>& examples() {
  static const std::vector<Example> list{
      {"language_model", "Next bytes of little stories, of unequal length.", language_model},
      {"maml", "Starting values from which five points teach a sine: gradients through steps of learning.", maml},
      {"ppo", "Balancing a pole: an actor and a critic, trained in turn on what the actor lived through.", ppo},
      {"private_sgd", "Differential privacy: each example's gradient clipped, noise on the sum.", private_sgd},
      {"federated_averaging", "Ten clients that keep their examples to themselves and share parameters.", federated_averaging}};
  return list;
}

}  // namespace cairn::examples
