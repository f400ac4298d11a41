#pragma once
#include <string>
#include <vector>

#include "parallel/plan.h"
#include "parallel/schedule.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// A value that one stage of a pipeline writes and another reads. It goes straight from the one to the other, whatever lies between; its
// gradient goes straight back.
struct StageEdge {
  std::string value;
  int from = 0, to = 0;  // stages
  bool operator==(const StageEdge&) const = default;
};

// All of them, by the cards of the blocks. Refuses a value that is read before any block writes it and is no field of a batch.
std::vector<StageEdge> stage_edges(const model::Model& model, const Plan& plan);

// What one rank sends another, in the order in which it does: outputs of its stages' forwards, gradients of what their backwards were
// given.
struct StageMessage {
  StageEdge edge;
  bool gradient = false;
  int micro_batch = 0;
  bool operator==(const StageMessage&) const = default;
};
std::vector<StageMessage> stage_messages(const Schedule& schedule, const std::vector<StageEdge>& edges, int from, int to);

}  // namespace cairn::parallel
