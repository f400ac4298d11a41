#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/pass.h"
#include "parallel/stage_run.h"

namespace cairn::parallel {

// A batch of one sample that no loss counts, with the fields of `like`, which has none: for passes that run without samples of their own,
// because ranks along ep send rows to the experts here.
mesh::Batch ignored_sample(const mesh::Batch& like);

// A pass through a whole model in parts, so that passes may read each other's outputs: forward, put, evaluate_objective, put_gradient,
// backward, in this order, with parts of other passes in between. A pass that runs no blocks (runs_blocks) takes part in the collectives of
// the others; it has no outputs.
class PassRun {
 public:
  explicit PassRun(const Pass& pass);  // borrowed

  void forward();
  // An output of the model, until the objective is evaluated; undefined without samples.
  at::Tensor output(const std::string& name);
  // A further value for the objective; ignored without samples.
  void put(const std::string& name, const at::Tensor& value);
  model::Losses evaluate_objective();
  // The gradient of such a value; undefined without samples, or where the objective has none.
  at::Tensor take_gradient(const std::string& name);
  // A gradient of an output from elsewhere, beside that of the objective; ignored where it is undefined.
  void put_gradient(const std::string& name, const at::Tensor& gradient);
  void backward();  // the pass has a gradient sink

 private:
  bool has_outputs() const { return run_ && !ignored_; }
  void fetch_forward() const;
  void fetch_backward() const;

  const Pass& pass_;
  std::vector<std::vector<mesh::ParamId>> named_;  // by block, without samples
  std::unique_ptr<Pass> ignored_;                  // the same with a sample that nothing counts; null: it has samples
  std::unique_ptr<StageRun> run_;                  // null: it runs no blocks
};

}  // namespace cairn::parallel
