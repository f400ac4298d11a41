// Hecate (Qing et al. 2025, arXiv:2502.02581): fully sharded sparse data parallelism. Every expert, its gradient and its optimizer state
// have one home along ep. In each step the busy experts of a layer are copied to more ranks, used, and dropped; their gradients are summed
// at home:
//
//   begin      loads of the last steps -> tables P' (expert_copies/copy_plan.h) -> spAG: P -> P', started for all layers
//   weights    what a rank holds under P'; a layer waits for its own copies
//   sink       gradients of all holders -> spRS: P' -> P, started by each pass -> the ordinary sink at home
//   end        tokens of each expert, summed over all ranks as integers
//
// Nothing else of training knows of copies. Results are those of plain ep up to the order of sums.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/gradients.h"
#include "mesh/redistribute.h"
#include "model/call.h"
#include "parallel/expert_copies/copy_plan.h"
#include "parallel/expert_copies/load_window.h"
#include "parallel/options.h"
#include "parallel/plan.h"
#include "parallel/state/parameter_store.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm
namespace cairn::model {
class Model;
}

namespace cairn::parallel {

class CopiedExperts {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    ParameterStore& store;  // the homes: what passes read without copies, and where gradients go
    comm::Group& counters;  // all ranks that step together, for the counts of tokens
    NodeOf nodes;           // by coordinate along ep
    ExpertLayoutOptions options;
  };
  explicit CopiedExperts(Parts parts);
  ~CopiedExperts();

  // Around the passes of a step, on all ranks that step together.
  void begin();
  void end();
  // What the passes of the step read, and where their gradients go.
  const model::Weights& weights() const;
  mesh::Gradients& sink();
  // The tokens of this rank for each expert of a block, in a pass with gradients.
  void count(std::string_view block, const std::vector<int64_t>& tokens);

  // Of the last step: copies of experts over all layers, and the largest share of a layer's tokens that one rank computes, times the ranks.
  int64_t copies() const { return copies_; }
  double imbalance() const { return imbalance_; }

 private:
  class StepWeights;
  class StepGradients;

  // The experts of one block.
  struct Layer {
    std::string block;
    std::vector<mesh::ParamId> parameters;     // none where the block runs on another pipeline stage
    std::vector<std::vector<int64_t>> shapes;  // of the whole parameters
    mesh::Ragged homes, table;                 // P, and P' of this step
  };
  // A parameter whose experts have copies in this step.
  struct Copied {
    size_t layer = 0;
    mesh::Placement placement;
    at::Tensor values;
    std::shared_ptr<const mesh::RedistributePlan> spread, home;  // kept while their messages travel
    comm::Work ready;
  };

  void add_counts();
  void check_tables() const;
  CopyBudget budget(std::span<const int64_t> load) const;
  double imbalance_of(const std::vector<int64_t>& counts) const;

  Parts parts_;
  mesh::Mesh along_;  // the ranks along ep of this one
  std::vector<Layer> layers_;
  int64_t experts_ = 0;
  LoadWindow loads_;
  std::vector<int64_t> counts_;  // [layers][experts] of this step: of this rank, then of all
  comm::Work counts_summed_;
  bool counting_ = false;
  int64_t steps_ = 0, copies_ = 0;
  double imbalance_ = 0;
  mesh::RedistributePlanCache plans_;
  mutable std::map<int32_t, Copied> copied_;  // by parameter
  std::unique_ptr<StepWeights> weights_;
  std::unique_ptr<StepGradients> sink_;
};

}  // namespace cairn::parallel
