#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/actors/graph.h"
#include "parallel/pipeline/stage_edges.h"
#include "parallel/schedule.h"

namespace cairn::parallel {

// A pipeline as actors: each stage's forward, its backward, its weight gradients where those come apart, and what moves values between
// ranks. A rank's
// computing does its list of the schedule in order; messages between two ranks go in the order in which they are made. What bounds them
// are the registers: those of a value where it leaves, those where it arrives, and the activations that a stage keeps.
struct PipelineActors {
  enum class Role { forward, backward, weight, move, send, receive };
  struct Part {
    Role role = Role::forward;
    int stage = 0;                          // of those that compute
    std::set<int64_t> split_backward = {};  // of a backward: micro-batches whose weight gradients come later
    StageEdge edge = {};                    // of those that move
    bool gradient = false;                  // its gradient, on the way back
    std::vector<StageMessage> reads = {},
                              writes = {};  // of those that compute: what crosses, by input and by output; micro_batch is unused
  };
  base::ActorGraph graph;
  std::vector<Part> parts;  // by actor
  int compute = 0;          // the queue that computes, of one rank's actors
};

// How many registers there are.
struct EdgeRegisters {
  int sending = 2;
  int receiving = 0;                                        // 0: as `needed` says
  std::map<std::pair<std::string, bool>, int> needed = {};  // by crossing (edge_name) and gradient
  std::map<int, int> activations = {};                      // micro-batches by stage; where absent: all of them
};

std::string edge_name(const StageEdge& edge);

// As many as let the schedule run as it would with no bounds: one more than it ever has at once, so that the next is on its way.
EdgeRegisters edge_registers(const Schedule& schedule, const std::vector<StageEdge>& edges, int receiving = 0);

// All ranks, to be played in virtual time. A forward takes 1 second, each gradient 1.
PipelineActors all_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers);

// Those of one rank, to be run.
PipelineActors rank_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers, int rank);

}  // namespace cairn::parallel
