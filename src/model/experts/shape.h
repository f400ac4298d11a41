#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace cairn::model {

// The experts of a decoder's layers: each token of such a layer goes to top_k of `count` MLPs of their own weights.
struct ExpertShape {
  int64_t count = 0;  // 0: every layer has one MLP
  int64_t top_k = 2;
  int64_t width = 0;                       // hidden width of an expert
  int64_t shared_width = 0;                // of an MLP that every token goes to as well, with a gate of its own; 0: none
  bool normalize = true;                   // the weights of a token's experts add up to 1; false: they are probabilities among all experts
  std::vector<int64_t> dense_layers = {};  // layers with one MLP, ascending
  // Training.
  double aux_weight = 0;  // of the load-balancing loss
  double z_weight = 0;    // of the z-loss
  bool biased = false;    // a bias per expert, which follows the load, takes part in the choice (experts/balance.h)
  bool operator==(const ExpertShape&) const = default;

  bool in_layer(int64_t layer) const { return count > 0 && !std::binary_search(dense_layers.begin(), dense_layers.end(), layer); }
  int64_t layers_of(int64_t layers) const { return count > 0 ? layers - static_cast<int64_t>(dense_layers.size()) : 0; }
};

}  // namespace cairn::model
