// Hecate (Qing et al. 2025, arXiv:2502.02581): fully sharded sparse data parallelism. Every expert, its gradient and its optimizer state
// have one home along ep. In each step the busy experts of a layer are copied to more ranks, used, and dropped; their gradients are summed
// at home:
//
//   begin      loads of the last steps -> tables P' (expert_copies/copy_plan.h)
//   fetch      spAG: P -> P' of a layer, while the blocks before it compute (memory.prefetch_blocks); the layer waits for its own copies
//   calibrate  the first pass of a step: the true counts of a layer -> a larger P', and spAG of what it adds (expert_copies/calibration.h)
//   release    expert.rematerialize: the copies of a layer are dropped after its forward pass, and fetched again for its backward pass
//   sink       gradients of all holders -> spRS: P' -> P, started by each pass -> the ordinary sink at home
//   end        tokens of each expert, summed over all ranks as integers
//
// Nothing else of training knows of copies. Results are those of plain ep up to the order of sums. Between steps experts may get other
// homes (expert_copies/reshard.h): whoever moves them with all their state calls `moved`.
#pragma once
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/gradients.h"
#include "mesh/named_tensor.h"
#include "mesh/redistribute.h"
#include "model/call.h"
#include "parallel/expert_copies/calibration.h"
#include "parallel/expert_copies/copy_plan.h"
#include "parallel/expert_copies/load_window.h"
#include "parallel/experts/row_observer.h"
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

class CopiedExperts final : public RowObserver {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    ParameterStore& store;  // the homes: what passes read without copies, and where gradients go
    comm::Group& counters;  // all ranks that step together, for the counts of tokens
    NodeOf nodes;           // by coordinate along ep
    ExpertLayoutOptions options;
    LayerCosts costs = {};  // of calibration
  };
  explicit CopiedExperts(Parts parts);
  ~CopiedExperts() override;

  // Around the passes of a step, on all ranks that step together.
  void begin();
  void end();
  // What the passes of the step read, and where their gradients go.
  const model::Weights& weights() const;
  mesh::Gradients& sink();

  void leaving(std::string_view block, const std::vector<int64_t>& rows) override;
  mesh::Ragged calibrate(std::string_view block, std::span<const int64_t> rows) override;
  void arriving(std::string_view block, int64_t rows) override;

  // Between steps: new homes by the load of the last steps, by block (expert_copies/reshard.h); those that they have where no load is
  // known. The same on all ranks.
  std::vector<mesh::Ragged> planned_homes();
  std::vector<mesh::Ragged> homes() const;
  // The blocks with experts, in the order of these lists.
  std::vector<std::string> blocks() const;
  // The experts have these homes now, and all their state lies in this store.
  void moved(ParameterStore& store, const std::vector<mesh::Ragged>& homes);

  // For snapshots: the loads of the last steps and the homes, by expert id. A copy, the same on all ranks.
  mesh::NamedTensors state();
  // What a snapshot holds of it. Loads of another model or window are left out. Returns the homes of the snapshot; none where its ranks
  // along ep were others.
  std::vector<mesh::Ragged> restore(const mesh::NamedTensors& saved);

  // Of the last step: copies of experts over all layers, and layers that calibration gave more of them.
  int64_t copies() const { return copies_; }
  int64_t calibrated() const { return calibrated_; }
  // Of the step before it, of the worst layer: the most rows that the experts of a rank compute, over the mean; and what it would be if
  // every expert were at home alone.
  double imbalance() const { return imbalance_; }
  double home_imbalance() const { return home_imbalance_; }
  // Of this rank: the most bytes that layers with copies held at once, and the time that blocks have waited for them in the last step.
  int64_t peak_bytes() const { return peak_bytes_; }
  std::chrono::nanoseconds waited() const { return waited_; }
  // All of these, by the names that a run writes them under.
  std::vector<std::pair<std::string, double>> metrics() const;

 private:
  class StepWeights;
  class StepGradients;

  // The experts of one block.
  struct Layer {
    std::string block;
    int stage = 0;                             // rank along pp of the block
    std::vector<mesh::ParamId> parameters;     // none where the block runs on another pipeline stage
    std::vector<std::vector<int64_t>> shapes;  // of the whole parameters
    mesh::Ragged homes, table;                 // P, and P' of this step
    bool settled = false;                      // calibration has decided, in this step
  };
  // A parameter whose experts have copies in this step.
  struct Copied {
    size_t layer = 0;
    mesh::Placement placement;
    std::shared_ptr<const mesh::RedistributePlan> spread, home;  // kept while their messages travel
    at::Tensor values = {};                                      // undefined: not fetched, or released
    comm::Work ready = {};
  };

  size_t index_of(std::string_view block) const;
  Copied copied(size_t layer, size_t parameter);
  void fetch(mesh::ParamId id, Copied& one);
  const at::Tensor& wait_for(Copied& one);
  void drop(Copied& one);
  void add_counts();
  void check_tables() const;
  CopyBudget budget(std::span<const int64_t> load) const;
  double imbalance_of(const std::vector<int64_t>& rows) const;
  double imbalance_at_home(const std::vector<int64_t>& counts) const;

  Parts parts_;
  ParameterStore* store_;
  mesh::Mesh along_;  // the ranks along ep of this one
  std::vector<Layer> layers_;
  int64_t experts_ = 0;
  LoadWindow loads_;
  std::vector<int64_t> counts_;  // of this step, of this rank, then of all: [layers][experts] tokens, then [layers][ranks along ep] rows
  comm::Work counts_summed_;
  bool counting_ = false;
  int64_t steps_ = 0, copies_ = 0, calibrated_ = 0, held_bytes_ = 0, peak_bytes_ = 0;
  double imbalance_ = 0, home_imbalance_ = 0;
  std::chrono::nanoseconds waited_{0};
  mesh::RedistributePlanCache plans_;
  std::map<int32_t, Copied> copied_;  // by parameter
  std::unique_ptr<StepWeights> weights_;
  std::unique_ptr<StepGradients> sink_;
};

}  // namespace cairn::parallel
