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

// What this rank keeps of one parameter, as sync, optimizer and snapshot see it.
struct ParameterSlice {
  std::string name;
  size_t parameter = 0;          // by place in the model
  mesh::Interval elements = {};  // of what share().layout has of it; all of it: `value` has its shape, else one dim
  at::Tensor value, gradient;    // the gradient is undefined where the parameter is not trained
};

// The parameters and gradients of one rank under a plan: what it keeps, how passes come by the rest, and how gradients come to those who
// keep the parameters. Everything that the plan shares out is shared out here; passes, optimizers and syncs need not know.
class ParameterStore {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    std::vector<bool> trained;                 // by place in the model
    at::TensorOptions master, compute;         // how parameters are kept, and how passes read them
    at::TensorOptions gradients = at::kFloat;  // how gradients are summed and kept
    bool whole_parameters = false;             // the optimizer works on whole matrices
    int64_t min_unit_elements = 0;             // how small a message may be
    bool accumulate_unsharded = true;          // see GradientReducer
    bool reuse_gradient_memory = false;        // likewise `reuse_memory`, where this rank is alone
  };
  explicit ParameterStore(Parts parts);

  const ModelShard& shard() const { return shard_; }
  const std::vector<ParameterSlice>& pieces() const { return pieces_; }

  // What passes read, once `updated` has been called after the last change of what is kept.
  const model::Weights& weights() const { return *weights_; }
  void updated() { weights_->updated(); }
  void wait_for_gathers() const { weights_->wait_for_gathers(); }  // before what is kept is written to outside of a step

  // Where the weight gradients of a pass go. A parameter that is not trained costs nothing.
  mesh::Gradients& sink() { return chosen_ ? *chosen_ : static_cast<mesh::Gradients&>(*reducer_); }
  GradientReducer& reducer() { return *reducer_; }

  // Of the whole gradient, over all ranks that share this model: one element, alike on all of them. Waits for them.
  at::Tensor sum_of_squares() const;

  // Writes this rank's part of a whole parameter; `updated` afterwards.
  void load(size_t parameter, const at::Tensor& whole) const;

  int64_t parameter_bytes() const { return weights_->bytes(); }
  int64_t gradient_bytes() const { return reducer_->bytes(); }
  const ShardedWeights& sharded_weights() const { return *weights_; }

 private:
  comm::Group* model_group_ = nullptr;  // ranks that hold other parts of this replica's model; null: none
  ModelShard shard_;
  std::unique_ptr<ShardedWeights> weights_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<mesh::Gradients> chosen_;
  std::vector<ParameterSlice> pieces_;
  struct Squares {
    double counts;                 // of each square, in the sum over all ranks
    std::vector<at::Tensor> runs;  // of kept gradients
  };
  std::vector<Squares> squares_;
};

// How a plan cuts parameters into units. `whole_parameters`, `min_elements`: as ParameterStore::Parts has them.
ShardUnitRules shard_unit_rules(const Plan& plan, bool whole_parameters, int64_t min_elements);

// Over which axes state is shared out, and over which it is replicated at every step (islands that are apart differ between steps).
std::vector<std::string> sharding_axes(const Plan& plan);
std::vector<std::string> replicating_axes(const Plan& plan);

}  // namespace cairn::parallel
