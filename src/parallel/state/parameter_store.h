// The parameters and gradients of one rank.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "parallel/layout/model_shard.h"
#include "parallel/plan.h"
#include "parallel/state/gradient_reducer.h"
#include "parallel/state/sharded_weights.h"

namespace cairn::comm {
class World;
}

namespace cairn::parallel {

// The slice of one parameter that this rank owns and updates, as sync rules, optimizers and snapshots see it.
struct ParameterSlice {
  std::string name;
  size_t parameter = 0;          // index in the model
  int64_t unit = 0;              // the shard unit that it lies in
  mesh::Interval elements = {};  // of the rank's local tensor, shard().layout. If it is all of it, `value` has its shape, else one dim
  at::Tensor value, gradient;    // the gradient is undefined where the parameter is not trained
};

// State that is away between its uses (memory.parameters, memory.gradients). Slices are then to be held before they are read or written.
struct SwappedState {
  std::unique_ptr<mesh::TensorSwapper> swapper;  // null: everything is on the device
  memory::TierKind parameters = memory::TierKind::device, gradients = memory::TierKind::device;
  int64_t read_ahead = 0, gathered_bytes_max = 0;  // see SwappedUnits
  base::Log* log = nullptr;
};

// What a rank has of the parameters and gradients under a plan. It owns the rank's slices, gathers what passes read (ShardedWeights), and
// reduces gradients to the ranks that own the parameters (GradientReducer). All sharding (ZeRO, tp, pp) is decided here: passes, optimizers
// and sync rules do not see it.
//
// A step: passes read weights() and put gradients into sink(); reducer().finish(); the optimizer updates slices; updated().
class ParameterStore {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    std::vector<bool> trained;                 // by parameter of the model
    at::TensorOptions master, compute;         // how parameters are owned and updated, and how passes read them
    at::TensorOptions gradients = at::kFloat;  // how gradients are summed
    bool whole_parameters = false;             // the optimizer works on whole matrices: shard between parameters only
    int64_t min_unit_elements = 0;             // neighbouring blocks join until a message has this many elements
    bool accumulate_unsharded = true;          // see GradientReducer
    bool reuse_gradient_memory = false;        // see GradientReducer; only where this is the single rank
    SwappedState swapped = {};                 // what lies in a tier between its uses
  };
  explicit ParameterStore(Parts parts);

  const ModelShard& shard() const { return shard_; }
  const std::vector<ParameterSlice>& pieces() const { return pieces_; }

  // What passes read. Valid once `updated` has been called after the last change of a slice.
  const model::Weights& weights() const { return *weights_; }
  // Slices have changed: starts to gather them. Collective.
  void updated() { weights_->updated(); }
  // The same after an update by the optimizer, which changes trained and active parameters only. What has not changed is not sent.
  void updated_by_step() { weights_->updated(changes_); }
  // From the next step on these parameters of the model are frozen: they take no gradients, and neither they nor their gradients are sent.
  // `rule_writes`: a sync rule may change them all the same. Between steps.
  void set_frozen(const std::vector<bool>& frozen, bool rule_writes);
  // Waits for those messages. Call before slices are written outside of a step.
  void wait_for_gathers() const { weights_->wait_for_gathers(); }

  // Where the weight gradients of a pass go. Contributions to parameters that are not trained are dropped.
  mesh::Gradients& sink() { return trainable_sink_ ? *trainable_sink_ : static_cast<mesh::Gradients&>(*reducer_); }
  GradientReducer& reducer() { return *reducer_; }

  // Sum of squares of the whole gradient, over all ranks that share this replica's model: one element, identical on all of them.
  // Collective; waits.
  at::Tensor sum_of_squares() const;

  // Copies this rank's slice out of a whole parameter. Call `updated` afterwards.
  void load(size_t parameter, const at::Tensor& whole) const;

  // What lies in tiers, the optimizer's state included; null: everything is on the device.
  mesh::TensorSwapper* swapper() const { return swapper_.get(); }

  int64_t parameter_bytes() const { return weights_->bytes(); }
  int64_t gradient_bytes() const { return reducer_->bytes(); }
  const ShardedWeights& sharded_weights() const { return *weights_; }

 private:
  struct Groups;
  void make_weights(Parts& parts, const Groups& groups, const std::vector<ShardUnit>& units);
  void make_reducer(const Parts& parts, const Groups& groups, const std::vector<ShardUnit>& units, const std::vector<bool>& trained);
  void make_pieces(const Parts& parts, const std::vector<ShardSlice>& slices, const std::vector<bool>& trained);
  at::Tensor sum_by_unit(const std::vector<at::Tensor>& runs) const;
  void add_square(const at::Tensor& gradient, double weight, bool inside_unit);

  std::unique_ptr<mesh::TensorSwapper> swapper_;  // outlives what it holds the memory of
  bool sums_by_unit_ = false;
  comm::Group* model_group_ = nullptr;  // ranks that hold the other parts of this replica's model; null: none
  ModelShard shard_;
  std::unique_ptr<ShardedWeights> weights_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<mesh::Gradients> trainable_sink_;  // null: everything is trained and active
  std::vector<bool> trained_;                        // by parameter of the model, here
  std::vector<bool> changes_;                        // by parameter: may be changed by a step
  std::vector<ShardSlice> gradient_slices_;          // this rank's, in the order of the trained parameters
  std::vector<ParameterSlice> pieces_;
  struct Squares {
    double weight;                 // of each square in the sum over all ranks: a gradient that k copies hold counts 1/k on each
    std::vector<at::Tensor> runs;  // of gradients
  };
  std::vector<Squares> squares_;
};

// How a plan cuts parameters into shard units. `whole_parameters`, `min_elements`: as ParameterStore::Parts has them.
ShardUnitRules shard_unit_rules(const Plan& plan, bool whole_parameters, int64_t min_elements);

// The axes over which state is sharded, and those over which it is replicated at every step (islands that step separately are not replicas
// of each other between synchronisations).
std::vector<std::string> sharding_axes(const Plan& plan);
std::vector<std::string> replicating_axes(const Plan& plan);

}  // namespace cairn::parallel
