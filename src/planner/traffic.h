#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/label.h"
#include "model/pass_options.h"
#include "optim/needs.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::planner {

// What of a step's batch decides how many bytes are sent.
struct StepBatch {
  int64_t samples = 1;         // of the global batch
  int64_t rows = 1;            // sequences of a sample: a preference pair has two
  int64_t length = 1;          // positions of a sequence
  bool length_varies = false;  // `length` is the longest possible
  bool documents = false;      // the batch says which document each position belongs to
};

// What else decides it, beside the plan.
struct StepRules {
  std::vector<bool> trained = {};    // by parameter; empty: all
  std::vector<bool> recompute = {};  // by block; empty: none
  bool recompute_stage = false;
  bool recompute_last = true;        // also in the last micro-batch of a step
  bool accumulate_unsharded = true;  // see parallel::ParameterStore
  model::PartitionActivations partition_activations = model::PartitionActivations::automatic;
  bool scatter_boundaries = true;  // see model::PassOptions
  int64_t prefetch_blocks = 1;
  int64_t slice = 0;                                              // see model::PassOptions
  bool whole_parameters = false;                                  // see parallel::ParameterStore
  optim::SplitUpdate split_update = optim::SplitUpdate::nothing;  // what ranks along tp send in an update
  int64_t bucket_bytes = 1 << 20;                                 // of gradients that are one message
  int64_t reference_passes = 0;     // forward passes of a reference model before each pass with gradients (DPO)
  int64_t measures = 0;             // metrics that the objective reports beside the loss
  bool asks_before_update = false;  // train.on_bad_step: the loss is reduced before every update
  bool step_plans = false;          // context.plan: passes depend on the lengths in each batch
};

// The messages of one kind in one step, over all ranks together.
struct TrafficRow {
  std::string what;                 // "layers.*.attention, forward": layers that send the same are one row
  std::string axis;                 // along which ranks communicate: "tp", "shard+cp"; "all": every rank
  std::string collective;           // all_gather, reduce_scatter, all_reduce, ring, send
  std::vector<int64_t> shape = {};  // of the tensor that a group of ranks works on; the largest, if they differ
  std::string dtype = "fp32";
  int64_t times = 0;  // how many collectives, over all groups; or how many sends
  int64_t bytes = 0;  // payload sent by all ranks
  comm::Purpose purpose = comm::Purpose::control;
  std::string reason = {};
  // False: the row cannot be counted; `reason` says why.
  bool predicted = true;
  bool expected = false;  // not predicted: the bytes are those of the mean case, else at most so many
};

// Predicts the messages of one training step under a plan that parallel::fit_to_model has completed. The sums by purpose are what
// comm::Ledger shows for a step after the first: a collective sends the same bytes in total, whichever algorithm is chosen for it
// (comm/collectives/choose_algorithm.h). Only shapes matter: the model may be on the meta device. Evaluations and snapshots are not part of
// a step.
std::vector<TrafficRow> step_traffic(const model::Model& model, const parallel::Plan& plan, const StepBatch& batch, const StepRules& rules);

int64_t bytes_for(const std::vector<TrafficRow>& rows, comm::Purpose purpose);
int64_t bytes_along(const std::vector<TrafficRow>& rows, const std::string& axis);

// "layers.3.mlp" as "layers.*.mlp": one name for what every layer has.
std::string folded_name(const std::string& name);

}  // namespace cairn::planner
