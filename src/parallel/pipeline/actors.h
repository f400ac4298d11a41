#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/actors/graph.h"
#include "parallel/pipeline/stage_edges.h"
#include "parallel/schedule.h"

namespace cairn::parallel {

// A pipeline as actors (base/actors/graph.h): each stage's forward and backward, its weight gradient, recomputation, offload, gather and
// reduction where the schedule has them, and the messages along stage edges. A rank's compute queue follows its list of the schedule; a
// link's queue follows the order in which messages are made. Registers bound what is in flight: send buffers, receive buffers, and the
// activations that a stage keeps.
struct PipelineActors {
  enum class Role { forward, backward, weight, recompute, offload, gather, reduce, move, send, receive };
  struct Part {
    Role role = Role::forward;
    int stage = 0;                                      // of actors that compute
    std::set<int64_t> split_backward = {};              // of a backward: micro-batches whose weight gradient is an action of its own
    std::set<int64_t> listed = {};                      // of a recompute or offload: micro-batches that the schedule lists; others pass
    StageEdge edge = {};                                // of actors that send, receive or move
    bool gradient = false;                              // the gradient of the edge's value, in the other direction
    std::vector<StageMessage> reads = {}, writes = {};  // of actors that compute: edges by input and by output; micro_batch is unused
  };
  base::ActorGraph graph;
  std::vector<Part> parts;  // by actor
  int compute = 0;          // the compute queue (of rank_actors)
};

// How many buffers registers have.
struct EdgeRegisters {
  int sending = 2;
  int receiving = 0;                                        // per edge; 0: as `needed` says
  std::map<std::pair<std::string, bool>, int> needed = {};  // receive buffers by edge (edge_name) and gradient
  std::map<int, int> activations = {};                      // by stage: micro-batches whose activations fit; absent: all of them
};

std::string edge_name(const StageEdge& edge);

// As many as let the schedule run as if there were no bounds: one more than it ever uses at once, so that the next message is in flight.
EdgeRegisters edge_registers(const Schedule& schedule, const std::vector<StageEdge>& edges, int receiving = 0);

// The actors of all ranks, for simulation. A forward takes 1 second, each gradient 1.
PipelineActors all_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers);

// The actors of one rank, for execution.
PipelineActors rank_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers, int rank);

}  // namespace cairn::parallel
