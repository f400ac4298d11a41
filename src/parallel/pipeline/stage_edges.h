#pragma once
#include <string>
#include <vector>

#include "parallel/plan.h"
#include "parallel/schedule.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// A value that one pipeline stage writes and another reads. It goes directly from the one to the other, also where stages lie between (a
// skip connection); its gradient goes directly back.
struct StageEdge {
  std::string value;
  int from = 0, to = 0;  // stages
  bool operator==(const StageEdge&) const = default;
};

// All edges of a model under a plan, from the cards of its blocks.
std::vector<StageEdge> stage_edges(const model::Model& model, const Plan& plan);

// A message along an edge: the value, or (`gradient`) its gradient in the other direction.
struct StageMessage {
  StageEdge edge;
  bool gradient = false;
  int micro_batch = 0;
  bool operator==(const StageMessage&) const = default;
};
// What rank `from` sends to rank `to`, in order.
std::vector<StageMessage> stage_messages(const Schedule& schedule, const std::vector<StageEdge>& edges, int from, int to);

}  // namespace cairn::parallel
