#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "parallel/gradient_flow.h"
#include "parallel/plan.h"
#include "parallel/share.h"
#include "parallel/unit_weights.h"

namespace cairn::comm {
class World;
}

namespace cairn::parallel {

// What this rank keeps of one parameter, as sync, optimizer and snapshot see it.
struct KeptPiece {
  std::string name;
  size_t parameter = 0;          // by place in the model
  mesh::Interval elements = {};  // of what share().layout has of it; all of it: `value` has its shape, else one dim
  at::Tensor value, gradient;    // the gradient is undefined where the parameter is not trained
};

// The parameters and gradients of one rank under a plan: what it keeps, how passes come by the rest, and how gradients come to those who
// keep the parameters. Everything that the plan shares out is shared out here; passes, optimizers and syncs need not know.
class Store {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    std::vector<bool> trained;                 // by place in the model
    at::TensorOptions kept, read;              // how parameters are kept, and how passes read them
    at::TensorOptions gradients = at::kFloat;  // how gradients are summed and kept
    bool whole_parameters = false;             // the optimizer works on whole matrices
    int64_t unit_elements_least = 0;           // how small a message may be
    bool accumulate_whole = true;              // see GradientFlow
    bool lend_gradients = false;               // likewise `lent`, where this rank is alone
  };
  explicit Store(Parts parts);

  const Share& share() const { return share_; }
  const std::vector<KeptPiece>& kept() const { return kept_; }

  // What passes read, once `updated` has been called after the last change of what is kept.
  const model::Weights& weights() const { return *weights_; }
  void updated() { weights_->updated(); }
  void settle() const { weights_->settle(); }  // before what is kept is written to outside of a step

  // Where the weight gradients of a pass go. A parameter that is not trained costs nothing.
  mesh::Gradients& sink() { return chosen_ ? *chosen_ : static_cast<mesh::Gradients&>(*flow_); }
  GradientFlow& flow() { return *flow_; }

  // Of the whole gradient, over all ranks that share this model: one element, alike on all of them. Waits for them.
  at::Tensor sum_of_squares() const;

  // Writes this rank's part of a whole parameter; `updated` afterwards.
  void load(size_t parameter, const at::Tensor& whole) const;

  int64_t parameter_bytes() const { return weights_->bytes(); }
  int64_t gradient_bytes() const { return flow_->bytes(); }
  const UnitWeights& unit_weights() const { return *weights_; }

 private:
  comm::Group* mates_ = nullptr;  // ranks that hold other parts of this replica's model; null: none
  Share share_;
  std::unique_ptr<UnitWeights> weights_;
  std::unique_ptr<GradientFlow> flow_;
  std::unique_ptr<mesh::Gradients> chosen_;
  std::vector<KeptPiece> kept_;
  struct Squares {
    double counts;                 // of each square, in the sum over all ranks
    std::vector<at::Tensor> runs;  // of kept gradients
  };
  std::vector<Squares> squares_;
};

// How a plan cuts parameters into units. `whole_parameters`, `elements_least`: as Store::Parts has them.
UnitRules unit_rules(const Plan& plan, bool whole_parameters, int64_t elements_least);

// Over which axes state is shared out, and over which it is replicated at every step (islands that are apart differ between steps).
std::vector<std::string> keeping_axes(const Plan& plan);
std::vector<std::string> replicating_axes(const Plan& plan);

}  // namespace cairn::parallel
