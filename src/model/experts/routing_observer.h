#pragma once
#include <string_view>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// Sees which experts the tokens of each call choose (PassOptions::routing): for comparisons and for records of routing.
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  // `keys` [tokens]: sample and position of each token, as Call::token_keys has them; undefined where the pass has none. `scores`
  // [tokens, experts]: what the choice goes by. `ids` [tokens, top_k]: the chosen experts.
  virtual void saw(std::string_view block, const at::Tensor& keys, const at::Tensor& scores, const at::Tensor& ids) = 0;
};

}  // namespace cairn::model
