#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::parallel {

// How ranks along cp share sequences out (context_batch.h) and see each other's keys (model/context/attention.h).
struct ContextRule {
  std::string form = "ring";
  bool balanced = true;
  bool operator==(const ContextRule&) const = default;
};

// How a run is laid out over machines: what people write, planners search, the trainer executes and the simulator costs. A value;
// saved with every run.
struct Plan {
  mesh::Mesh mesh;
  std::map<std::string, mesh::Placement> placements;  // by parameter name; replicated where absent
  std::map<std::string, std::string> sync;            // rule by replicating axis
  int64_t micro_batch = 1;                            // samples of one pass on one rank
  int64_t micro_batches = 0;                          // passes of a step on every rank; 0: as micro_batch makes it
  std::vector<int64_t> stage_blocks = {};             // how many blocks each stage of the pipeline runs; empty: one stage has them all
  std::vector<int> rank_of_stage = {};                // which rank along pp runs each stage
  std::string schedule = {};                          // of the pipeline
  int registers = 0;                                  // for each value where it arrives at a stage; 0: as the schedule needs
  std::string routing = "fixed";                      // random: micro-batches change over between the islands' pipelines
  ContextRule context = {};                           // along cp
  int zero = 0;                                       // what ranks along shard and cp share out: 1 optimizer state, 2 gradients too, 3 all
  std::string precision = "fp32";
  int island = 0, islands = 1;  // where each island is started by itself: which this is, of how many

  bool operator==(const Plan&) const = default;
};

// Whether islands train apart: each takes its steps by itself, and a rule other than a sum every step brings them together now and then.
bool islands_step_separately(const Plan& plan);
// The ranks that take a step together with this one, in order: all of them, or those of its island where islands are apart.
std::vector<int> step_group_of(const Plan& plan, int rank);

// The axes along which ranks share a step's samples out.
inline const std::vector<std::string> kSampleAxes{"island", "dp", "shard", "ep"};

// How a parameter lies.
mesh::Placement placement_of(const Plan& plan, const std::string& parameter);

std::string to_json(const Plan& plan);

}  // namespace cairn::parallel
