#pragma once
#include <cstdint>
#include <span>

#include "model/model.h"
#include "planner/experts/routing_trace.h"

namespace cairn::planner {

// A whole model on this rank. Borrowed.
struct RoutedModel {
  const model::Model& model;
  const model::Weights& weights;
  model::Buffers& buffers;  // for sequences of `length` tokens
};

// Layers with experts, and the experts of each; refuses models without.
struct ExpertLayers {
  int layers = 0;
  int experts = 0;
};
ExpertLayers expert_layers(const model::Model& model);

// Runs tokens through the model in sequences of `length` and records which expert each went to first.
RoutingTrace record_routing(const RoutedModel& routed, std::span<const int64_t> tokens, int64_t length);

}  // namespace cairn::planner
