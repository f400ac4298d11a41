#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_tags.h"
#include "model/block.h"
#include "model/saved.h"
#include "model/values.h"
#include "parallel/activations/host_offload.h"
#include "parallel/batch/local_batch.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pass.h"

namespace cairn::parallel {

// Whether the gradients of a block need its weights: those of a lookup in a table do not, unless it is computed again.
bool backward_needs_weights(const Pass& pass, size_t block);
bool backward_needs_weights(const model::Card& card);  // where it is not

// One micro-batch on its way through a run of consecutive blocks: all of a model, or a stage of a pipeline. Forward, objective, input
// gradients, weight gradients are four calls, in this order, with anything in between.
class StageRun {
 public:
  // `pass` is borrowed until the run is over. `releases`: weights are given up block by block (else whoever drives several stages does).
  StageRun(const Pass& pass, BlockRange blocks, bool releases);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  // Values from blocks before; fields of the batch are there already.
  void put(const std::string& name, at::Tensor tensor) { values_.put(name, std::move(tensor)); }
  void forward();
  // A value for blocks after.
  at::Tensor output(const std::string& name) { return values_.get(name); }
  model::Losses evaluate_objective();  // of the last blocks
  void drop_outputs() { values_ = {}; }

  // Gradients from blocks after.
  void put_gradient(const std::string& name, at::Tensor gradient) { gradients_.add(name, std::move(gradient)); }
  void backward_input();
  at::Tensor input_gradient(const std::string& name) { return gradients_.take(name); }
  void collect_field_gradients(model::Values& into);
  void backward_weight();
  void backward();  // both, block by block

 private:
  const model::Block& block(size_t i) const;
  void forward_block(size_t i, bool keep, const model::Call& call);
  model::Call recompute_call(model::Buffers& scratch) const;
  void save_inputs(size_t i, model::Values& from);
  void offload_inputs(size_t i);
  void release_offloaded();
  void fetch_inputs(size_t i);
  void recompute_block(size_t i);
  void recompute_stage();
  void book(size_t i);
  bool recomputed(size_t i) const;

  const Pass& pass_;
  BlockRange range_;
  bool releases_;
  LocalBatch local_;
  model::Call call_;
  bool keeps_;             // gradients will be asked for
  bool stage_recomputed_;  // the whole run is computed again
  model::Values values_, gradients_;
  std::vector<std::vector<std::string>> dead_;  // by block: what nobody in this run reads after it
  std::vector<model::Saved> saved_;
  std::vector<std::map<std::string, model::Value>> inputs_;    // of blocks that are computed again
  std::vector<std::map<std::string, HostOffload>> offloaded_;  // their tensors, where those are in host memory
  std::optional<size_t> offloading_;                           // whose are on their way there
  std::map<std::string, model::Value> stage_inputs_;           // to the whole run, likewise
  std::vector<base::BookedMemory> booked_;
  std::vector<std::vector<mesh::ParamId>> named_;
};

}  // namespace cairn::parallel
