// Which experts each token of a step chose, to compare two layouts. Rounding decides between experts of nearly equal scores; where layouts
// differ, the margin tells whether that is what happened.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/experts/routing_observer.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// The experts of one token in one block, ascending.
struct RoutedToken {
  std::vector<int64_t> experts;
  double margin = 0;  // between the score of the last chosen expert and the next; 0: all are chosen
  bool operator==(const RoutedToken&) const = default;
};

// By block and token key (sample and position).
using StepRouting = std::map<std::pair<std::string, int64_t>, RoutedToken>;

// Records the first choice of every token; recomputation chooses again.
class RoutingRecorder final : public model::RoutingObserver {
 public:
  void saw(std::string_view block, const at::Tensor& keys, const at::Tensor& scores, const at::Tensor& ids) override;
  // What all ranks have seen since the last call, on every rank. Collective.
  StepRouting take(comm::World& world);

 private:
  StepRouting seen_;
};

// "3 tokens of 9216 chose other experts; first in layers.2.mlp the token at 17 of sample 5: 1, 4 and not 1, 5, by a margin of 3e-08".
// Empty: all chose the same. Tokens that only one of the two has are left out.
std::string routing_difference(const StepRouting& one, const StepRouting& other);

}  // namespace cairn::train
