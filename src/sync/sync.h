#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/work.h"
#include "mesh/named_tensor.h"

namespace cairn::base {
class Trace;
}
namespace cairn::comm {
class Bridge;
class Group;
}  // namespace cairn::comm

namespace cairn::sync {

struct SyncOptions;

// A parameter of the whole model, wherever its parts are kept.
struct FullParameter {
  std::string name;
  int64_t elements = 0;
};

// Whole parameters of a replica of which each rank keeps a part, for rules that talk with islands of other layouts.
class FullParameterGather {
 public:
  virtual ~FullParameterGather() = default;
  // `mine` is this rank's part of the parameter at this place of Replica::model, fp32; undefined: none. The whole on the replica's first
  // rank, on the host; undefined elsewhere. Collective.
  virtual at::Tensor gather(size_t place, const at::Tensor& mine) = 0;
  // This rank's part of a whole, as it is kept here.
  virtual void take_shard(size_t place, const at::Tensor& whole, const at::Tensor& mine) = 0;
};

// Where each island is a world of its own: how it talks with the others.
struct RemoteIslands {
  comm::Bridge* bridge = nullptr;                  // on the island's first rank; null elsewhere
  int founders = 1;                                // islands that wait for each other before the first step; others join them
  FullParameterGather* full_parameters = nullptr;  // null: every rank keeps everything
  std::function<bool()> stopping = {};             // whether somebody would like this island to end
};

// What a rule works on, borrowed from the trainer.
struct Replica {
  comm::Group& replica_group;                     // ranks that hold the same shard in other replicas
  comm::Group& model_group;                       // ranks that share this replica's model (norms over the whole of it)
  std::span<const mesh::NamedTensor> parameters;  // same names in the same order on every peer
  std::span<const mesh::NamedTensor> gradients;   // the gradient sink's pieces, in that same order
  std::span<const FullParameter> model = {};      // what is trained of the whole model: alike on all ranks
  int64_t steps = 0;                              // of the run
  uint64_t seed = 0;                              // of the run
  base::Trace* trace = nullptr;                   // where waits are noted; null: nowhere
  const RemoteIslands* remote_islands = nullptr;  // null: the islands are parts of this world, and peers their ranks
};

struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;  // that this replica has learned from in it
  double learning_rate = 0;
  bool skipped = false;
};

// Peers came or went between two steps.
struct Membership {
  int64_t generation = 0;
};

// Something that a rule keeps for every element of some parameters, shared out like them.
struct ElementState {
  std::string name;              // "momentum"
  std::vector<bool> of;          // by place in Replica::model: which parameters have it at this step. Alike on all ranks
  std::vector<at::Tensor> mine;  // by place in Replica::parameters; undefined where `of` says no. A loader writes into them
};

// A number that is worth a line in the metrics: what happened since it was last asked for.
using StepMetrics = std::vector<std::pair<std::string, double>>;
inline double metric(const StepMetrics& notes, std::string_view name) {
  double value = 0;
  for (const auto& [of, number] : notes)
    if (of == name) value = number;
  return value;
}

// How the replicas along one mesh axis come to agree. The trainer calls the hooks in this order, alike on every peer. A hook
// only starts work; its handle says when the next phase may begin, so a rule overlaps by handing back work not yet done.
class Sync {
 public:
  virtual ~Sync() = default;
  // The gradient of parameter `index` is complete, with backward still running: a rule may start on it.
  virtual void gradient_ready(int64_t /*index*/) {}
  // Goes on with what is under way, for so long at most: called where this rank would otherwise only wait for its GPU, since messages move
  // when somebody moves them. False: there is nothing to go on with.
  virtual bool progress(std::chrono::nanoseconds /*at_most*/) { return false; }
  // All gradients are complete. When the work is done the optimizer may read them.
  virtual comm::Work after_backward(const StepFacts&) { return comm::Work::done(); }
  // Parameters hold the result of the step. When the work is done the next forward may read them.
  virtual comm::Work after_step(const StepFacts&) { return comm::Work::done(); }
  // Pure on purpose: no rule may forget the question.
  virtual void on_membership(const Membership& now) = 0;
  // After the last step: merges the replicas, or picks one, as the recipe's `final` says.
  virtual void finish() {}

  // Parameters have their first values, or those of a snapshot, and so has what `elements` and `state` named: the run goes on after
  // `steps_done` steps, or more where it joins others that have come further: the answer.
  virtual int64_t begin(int64_t steps_done) { return steps_done; }
  // Whether this replica takes part in the step that comes, or lets it pass, being slower than others. Alike on all of its ranks.
  virtual bool should_step(int64_t /*step*/) { return true; }
  // What is evaluated, exported and saved as the model, in the order of the parameters; empty: the parameters themselves. Its own tensors:
  // a loader writes into them.
  virtual std::vector<at::Tensor> global_parameters() { return {}; }
  // What must survive a restart after `step`: by element, and what is small and alike on all ranks of a replica, by logical name. The
  // tensors are the rule's own: a loader writes into them, before `begin`.
  virtual std::vector<ElementState> elements(int64_t /*step*/) { return {}; }
  virtual mesh::NamedTensors state() { return {}; }

  // This replica would like to end early. Where replicas take every step together the trainer sees to it itself.
  virtual void request_stop() {}
  // Whether the replicas have agreed to end after the step that was just taken.
  virtual bool should_stop() const { return false; }
  virtual StepMetrics metrics() { return {}; }
};

// The rule called options.kind; an unknown one is refused and the nearest named. The list is in rules.cpp.
std::unique_ptr<Sync> make_sync(const SyncOptions& options, Replica replica);

// Several rules as one: each hook calls theirs, in this order. At most one may have a model of its own (`agreed`).
std::unique_ptr<Sync> make_chain(std::vector<std::unique_ptr<Sync>> rules);

// The names that make_sync knows: those that sum gradients at every step, and those by which islands train apart.
std::vector<std::string> rule_names();
std::vector<std::string> island_rule_names();

}  // namespace cairn::sync
