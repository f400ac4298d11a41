#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/consensus/raft.h"
#include "comm/work.h"
#include "mesh/named_tensor.h"

namespace cairn::base {
class Trace;
}
namespace cairn::comm {
class Group;
}
namespace cairn::mesh {
class WriteBarrier;
}

namespace cairn::sync {

struct SyncOptions;
class IslandLink;
class MessageRounds;

// A parameter of the full model, whichever ranks have its shards.
struct FullParameter {
  std::string name;
  int64_t elements = 0;
};

// Assembles full parameters from the shards of one replica, for exchanges with islands that shard the model differently.
class FullParameterGather {
 public:
  virtual ~FullParameterGather() = default;
  // Returns the full parameter at this index of Replica::model on the replica's first rank, on the host; undefined on the other ranks.
  // `mine` is this rank's shard of it, fp32; undefined: this rank has none. Collective over the replica.
  virtual at::Tensor gather(size_t place, const at::Tensor& mine) = 0;
  // Copies this rank's shard out of a full parameter into `mine`.
  virtual void take_shard(size_t place, const at::Tensor& whole, const at::Tensor& mine) = 0;
};

// How one island reaches the others where each island is a world of its own, started separately. Borrowed from the trainer.
struct RemoteIslands {
  std::function<std::unique_ptr<IslandLink>()> make_link = {};         // on the island's first rank; empty elsewhere
  std::shared_ptr<comm::RaftStore> log = {};                           // where the island keeps the log of decisions; null: only in memory
  comm::RaftFaults faults = {};                                        // for tests
  std::chrono::nanoseconds founders_limit = std::chrono::minutes(30);  // for enough islands to arrive
  int count = 2;                                                       // islands that there may be
  int founders = 1;                                // islands that wait for each other before the first step; others join later
  FullParameterGather* full_parameters = nullptr;  // null: every rank has the full model
};

// What a rule works on. Groups, tensors and pointers are borrowed from the trainer and outlive the rule.
struct Replica {
  comm::Group& replica_group;                     // ranks that hold the same shard in other replicas
  comm::Group& model_group;                       // ranks that share this replica's model, for norms over all shards
  std::span<const mesh::NamedTensor> parameters;  // this rank's shards; same names and order on every rank of replica_group
  std::span<const mesh::NamedTensor> gradients;   // by parameter, in the same order
  std::span<const FullParameter> model = {};      // everything that is trained, unsharded: identical on all ranks
  int64_t steps = 0;                              // of the run
  uint64_t seed = 0;                              // of the run
  base::Trace* trace = nullptr;                   // records waits; null: no trace
  mesh::WriteBarrier* barrier = nullptr;          // told before parameters or saved state change; null: nobody asks
  std::function<bool()> stopping = {};            // whether a stop was requested; waits for other replicas then end within seconds
  const RemoteIslands* remote_islands = nullptr;  // null: all islands are in this world and replica_group connects them
};

// What the trainer reports about a step.
struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;  // that this replica learned from in the step
  double learning_rate = 0;
  bool skipped = false;  // nothing was updated: should_step said no, or the numbers of the step were bad
};

// The replicas of the group changed between two steps.
struct Membership {
  int64_t generation = 0;
};

// State that a rule keeps for every element of some parameters, sharded like them.
struct ElementState {
  std::string name;              // "momentum"
  std::vector<bool> of;          // by index in Replica::model: which parameters have it at this step. Identical on all ranks
  std::vector<at::Tensor> mine;  // by index in Replica::parameters; undefined where `of` says no. A loader writes into them
};

// Values for the metrics of a step, by name.
using StepMetrics = std::vector<std::pair<std::string, double>>;
// The last value of this name; 0 if there is none.
inline double metric(const StepMetrics& metrics, std::string_view name) {
  double value = 0;
  for (const auto& [key, number] : metrics)
    if (key == name) value = number;
  return value;
}

// A rule by which the replicas along one mesh axis are synchronised. A new rule is one source file and a line in rules.cpp.
//
// The trainer calls the hooks from one thread, in this order, identically on every rank of the group:
//
//   begin, then for each step: should_step, gradient_ready for every gradient, after_backward, (optimizer step), after_step; then finish
//
// after_backward and after_step only start work. The returned handle says when the next phase may begin, so a rule overlaps communication
// with computation by returning a handle that is not done.
class Sync {
 public:
  virtual ~Sync() = default;

  // Parameters have their first values, or those of a snapshot, and so have the tensors of `elements` and `state`. Returns the step to
  // resume from: `steps_done`, or a later one when joining a run in progress.
  virtual int64_t begin(int64_t steps_done) { return steps_done; }
  // Whether this replica takes the coming step; false: it is slower than others and skips it. Identical on all of the replica's ranks.
  virtual bool should_step(int64_t /*step*/) { return true; }
  // The gradient of parameter `index` is complete while backward still runs: a rule may start to reduce it.
  virtual void gradient_ready(int64_t /*index*/) {}
  // All gradients are complete. When the work is done the optimizer may read them.
  virtual comm::Work after_backward(const StepFacts&) { return comm::Work::done(); }
  // Parameters hold the result of the step. When the work is done the next forward may read them.
  virtual comm::Work after_step(const StepFacts&) { return comm::Work::done(); }
  // From the next step on these parameters are frozen, by index in Replica::parameters: their gradients are zero everywhere. Rules that
  // know it (SyncNeeds::leaves_out_frozen) do not send them. Between steps, with equal values on every replica.
  virtual void set_frozen(const std::vector<bool>& /*frozen*/) {}
  // After the last step: merges the replicas, or picks one, as the recipe's `final` says.
  virtual void finish() {}

  // The result of the run is saved: waits for replicas that still need this one, for a limited time.
  virtual void leave() {}

  // Advances pending messages for at most this long. The trainer calls it where it would otherwise only wait for its GPU. False: nothing is
  // pending.
  virtual bool progress(std::chrono::nanoseconds /*at_most*/) { return false; }
  // Pure on purpose: every rule must say what it does when replicas come or go.
  virtual void on_membership(const Membership& now) = 0;

  // The parameters that are evaluated, exported and saved as the model, by index in Replica::parameters. Empty: the replica's own. The
  // tensors belong to the rule: a loader writes into them.
  virtual std::vector<at::Tensor> global_parameters() { return {}; }
  // What a snapshot after `step` must hold: per-element state, and small tensors that are identical on all ranks of a replica, by name. The
  // tensors belong to the rule: a loader writes into them, before `begin`.
  virtual std::vector<ElementState> elements(int64_t /*step*/) { return {}; }
  virtual mesh::NamedTensors state() { return {}; }

  // Rounds of messages that the step makes and applies itself (message_rounds.h); null: the rule has none.
  virtual MessageRounds* message_rounds() { return nullptr; }

  // Whether the mean of all replicas is evaluated after this step, before `finish`: would a merge help now?
  virtual bool tracks_merge(int64_t /*step*/) const { return false; }
  // Forms that mean, has it evaluated and throws it away: nothing that is trained changes. `loss_of` returns the loss of these parameters
  // on held-out samples, by index in Replica::parameters; empty: of the replica's own. NaN: there are no samples. Collective over all
  // replicas. Returns what metrics of the step say about it; nothing: there is no result.
  using LossOf = std::function<double(const std::vector<at::Tensor>& parameters)>;
  virtual StepMetrics track_merge(int64_t /*step*/, const LossOf& /*loss_of*/) { return {}; }

  // This replica was asked to stop early. Where replicas take every step together the trainer stops them itself.
  virtual void request_stop() {}
  // Whether the replicas have decided to stop after the step that was just taken.
  virtual bool should_stop() const { return false; }
  // This replica was left out and has taken up the state of the others: training goes on after this step. Once for each time.
  virtual std::optional<int64_t> take_new_position() { return std::nullopt; }
  // Why this replica must end, though its last step is not done: it reaches too few others. Empty: it need not. Its state can be saved.
  virtual std::string interruption() const { return ""; }
  // Why the parameters of this replica are not those that the replicas have in common. Empty: they are.
  virtual std::string apart() const { return ""; }
  // Whether this replica takes no more part in rounds and the last one has no result here. Other replicas may have its result.
  virtual bool round_unfinished() const { return false; }
  // What happened since the last call.
  virtual StepMetrics metrics() { return {}; }
};

// Makes the rule that options.kind names; an unknown name is refused and the nearest one suggested. Needs and names of rules: needs.h.
std::unique_ptr<Sync> make_sync(const SyncOptions& options, Replica replica);

// Several rules as one, for replicas along several axes: each hook calls theirs, in this order. At most one may have global_parameters.
// `barrier`: some rule does not announce what it writes (SyncNeeds::announces_writes), so hooks that may write wait for everything.
std::unique_ptr<Sync> make_chain(std::vector<std::unique_ptr<Sync>> rules, mesh::WriteBarrier* barrier = nullptr);

}  // namespace cairn::sync
