#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/work.h"
#include "mesh/named_tensor.h"

namespace cairn::comm {
class Group;
}

namespace cairn::sync {

struct SyncOptions;

// What a rule works on, borrowed from the trainer.
struct Replica {
  comm::Group& peers;                             // ranks that hold the same shard in other replicas
  comm::Group& mates;                             // ranks that share this replica's model (norms over the whole of it)
  std::span<const mesh::NamedTensor> parameters;  // same names in the same order on every peer
  std::span<const mesh::NamedTensor> gradients;   // the gradient sink's pieces, in that same order
};

struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;
  double learning_rate = 0;
  bool skipped = false;
};

// Peers came or went between two steps.
struct Membership {
  int64_t generation = 0;
};

// How the replicas along one mesh axis come to agree. The trainer calls the hooks in this order, alike on every peer. A hook
// only starts work; its handle says when the next phase may begin, so a rule overlaps by handing back work not yet done.
class Sync {
 public:
  virtual ~Sync() = default;
  // The gradient of parameter `index` is complete, with backward still running: a rule may start on it.
  virtual void gradient_ready(int64_t /*index*/) {}
  // All gradients are complete. When the work is done the optimizer may read them.
  virtual comm::Work after_backward(const StepFacts&) { return comm::Work::done(); }
  // Parameters hold the result of the step. When the work is done the next forward may read them.
  virtual comm::Work after_step(const StepFacts&) { return comm::Work::done(); }
  // Pure on purpose: no rule may forget the question.
  virtual void on_membership(const Membership& now) = 0;
  // After the last step: merges the replicas, or picks one, as the recipe's `final` says.
  virtual void finish() {}
  // What must survive a restart, by logical name. The tensors are the rule's own: a loader writes into them.
  virtual mesh::NamedTensors state() { return {}; }
};

// The rule called options.kind; an unknown one is refused and the nearest named. The list is in rules.cpp.
std::unique_ptr<Sync> make_sync(const SyncOptions& options, Replica replica);

// The names that make_sync knows.
std::vector<std::string> rule_names();

}  // namespace cairn::sync
