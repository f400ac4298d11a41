// What the files that count traffic share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "planner/traffic.h"

namespace cairn::planner {

// Equal micro-batches, over all ranks that have samples of their own.
struct MicroBatches {
  int64_t samples = 0;      // of one micro-batch
  bool recomputed = false;  // with activation recomputation
  int64_t times = 0;
};

// The step that is counted.
struct TrafficCase {
  const model::Model& model;
  const parallel::Plan& plan;
  const StepBatch& batch;
  const StepRules& rules;
  std::vector<MicroBatches> micro_batches = {};  // those with samples
  int64_t max_passes = 0;                        // of a step on any rank; some may have no samples

  int extent(const std::string& axis) const { return plan.mesh.extent(axis); }
  int64_t extent(const std::vector<std::string>& axes) const;
  std::string axis_name(const std::vector<std::string>& axes) const;       // the axes with several ranks: "shard+cp"
  int64_t element_bytes() const { return parallel::compute_bytes(plan); }  // of activations
};

class TrafficTable {
 public:
  // Adds to the row of the same name, axis, collective and purpose. A row without messages is left out.
  void add(TrafficRow row);
  void add_unpredicted(std::string what, std::string axis, comm::Purpose purpose, std::string reason);
  std::vector<TrafficRow> rows;
};

// Bytes that all of n ranks send together, where `bytes` is the whole tensor: gathered, scattered, or reduced on all.
inline int64_t gather_bytes(int64_t bytes, int64_t ranks) { return (ranks - 1) * bytes; }
inline int64_t scatter_bytes(int64_t bytes, int64_t ranks) { return (ranks - 1) * bytes; }
inline int64_t all_reduce_bytes(int64_t bytes, int64_t ranks) { return 2 * (ranks - 1) * bytes; }

void add_tensor_parallel(const TrafficCase& step, TrafficTable& table);   // along tp, inside blocks
void add_context_parallel(const TrafficCase& step, TrafficTable& table);  // along cp, likewise
void add_pipeline(const TrafficCase& step, TrafficTable& table);          // values between pipeline stages
void add_expert_parallel(const TrafficCase& step, TrafficTable& table);   // along ep, likewise
void add_gradients(const TrafficCase& step, TrafficTable& table);
void add_parameters(const TrafficCase& step, TrafficTable& table);
void add_update(const TrafficCase& step, TrafficTable& table);  // of parameters that ranks along tp hold together

// Whether a block has the weights of several experts, which are whole along tp: nothing is sent there for them.
bool has_experts(const model::Model& model, const model::Card& card);

}  // namespace cairn::planner
