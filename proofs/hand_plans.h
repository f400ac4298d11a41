#pragma once
#include <string>
#include <vector>

#include "planner/graph/model_graph.h"
#include "planner/sbp/infer.h"

namespace cairn::study {

// Model families at sizes that people train, as the planner sees them.
struct PlannedFamily {
  std::string name;
  planner::OpGraph graph;
};
std::vector<PlannedFamily> planned_families();
const std::vector<std::string>& planned_meshes();

// Megatron's placements by the names that Hugging Face gives, as its users write them down: whole, by outputs, by inputs, by rows of a
// table, by its columns.
enum class ByName { whole, out, in, rows, columns };
ByName by_name(const std::string& name);

// Layouts as people write them, each operation decided by hand: samples along dp; along tp too, or there Megatron's
// split of weights by their names with hidden states on every rank or with their tokens sharded; weights kept whole or sharded along
// dp (FSDP).
enum class HandTensor { samples, whole_stream, shared_tokens };
struct HandPlan {
  std::string name;
  HandTensor tensor = HandTensor::whole_stream;
  bool sharded = false;
};
const std::vector<HandPlan>& hand_plans();
planner::PlacedGraph place_by_hand(const planner::OpGraph& graph, planner::Boxing& boxing, const HandPlan& plan);

}  // namespace cairn::study
