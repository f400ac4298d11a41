#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_tags.h"
#include "model/block.h"
#include "model/loss_terms.h"
#include "model/saved.h"
#include "model/values.h"
#include "parallel/activations/kept_input.h"
#include "parallel/activations/slices.h"
#include "parallel/batch/local_batch.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pass.h"

namespace cairn::parallel {

// Whether backward of a block reads its weights. An embedding lookup does not, unless it is recomputed. The second form: without
// recomputation.
bool backward_needs_weights(const Pass& pass, size_t block);
bool backward_needs_weights(const model::Card& card);

// The weights that are fetched while block `i` of a run is at work: those of the next blocks in the direction of the pass, as far ahead as
// PassOptions::prefetch_blocks says. `named`: the parameters of each block of the run, which begins with block `first` of the model.
std::vector<mesh::ParamId> weights_ahead(const Pass& pass, const std::vector<std::vector<mesh::ParamId>>& named, size_t first, size_t i,
                                         bool forward);
// The weights that stay when block `i` releases its own: as above, but those of the next block at least.
std::vector<mesh::ParamId> weights_kept(const Pass& pass, const std::vector<std::vector<mesh::ParamId>>& named, size_t first, size_t i,
                                        bool forward);

// One micro-batch in a run of consecutive blocks: a whole model, or a pipeline stage. Calls in this order, with anything in between:
//   put, forward, output, evaluate_objective (last stage), put_gradient, backward_input, input_gradient, backward_weight
// or `backward` in the place of the two gradients. Activation recomputation and offload happen inside; a schedule may ask for them before
// the gradient is there (offload, recompute).
class StageRun {
 public:
  // `pass` is borrowed. `releases`: weights are released block by block; otherwise the caller does it, for several stages together.
  StageRun(const Pass& pass, BlockRange blocks, bool releases);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  // A value from earlier blocks. Fields of the batch are there already.
  void put(const std::string& name, at::Tensor tensor) { values_.put(name, std::move(tensor)); }
  void forward();
  // A value for later blocks.
  at::Tensor output(const std::string& name) { return values_.get(name); }
  int64_t tokens() const { return call_.slice.batch * call_.slice.length; }  // of the pass, on all ranks along tp together
  model::Losses evaluate_objective();                                        // only where these are the last blocks
  // Adds the loss terms of these blocks to the measures, after those of the objective (Model::loss_terms). evaluate_objective has done it.
  void add_terms(model::Losses& losses) const;
  void drop_outputs() { values_ = {}; }

  // Copies what recomputation reads to host memory, until `recompute` or backward needs it. finish_offload frees the device memory.
  void offload();
  void finish_offload();
  // Recomputes what backward needs first: the whole run where it is recomputed at once, else its last recomputed block, or all of them
  // (PassOptions::recompute_all_ahead).
  void recompute();

  // A gradient from later blocks.
  void put_gradient(const std::string& name, at::Tensor gradient) { gradients_.add(name, std::move(gradient)); }
  bool has_gradient(const std::string& name) const { return gradients_.has(name); }
  void backward_input();
  at::Tensor input_gradient(const std::string& name) { return gradients_.take(name); }
  void collect_field_gradients(model::Values& into);
  void backward_weight();
  void backward();  // both, block by block

 private:
  const model::Block& block(size_t i) const;
  void forward_block(size_t i, bool keep, const model::Call& call);
  void forward_group(const BlockGroup& group, bool keep);
  void backward_group(const BlockGroup& group);
  model::Call recompute_call(model::Buffers& scratch) const;
  size_t forward_frozen();
  void save_inputs(size_t i, model::Values& from);
  void convert_inputs(size_t i);
  void offload_inputs(size_t i);
  void release_offloaded();
  void prefetch_inputs(size_t i);
  void recompute_block(size_t i);
  void recompute_stage();
  void book(size_t i);
  bool recomputed(size_t i) const;
  void progress() const;

  const Pass& pass_;
  BlockRange range_;
  bool releases_;
  LocalBatch local_;
  model::LossTerms terms_;
  model::Call call_;
  bool keeps_;             // backward will follow
  bool stage_recomputed_;  // backward will recompute the whole run
  size_t frozen_;          // so many leading blocks have no backward (Pass::frozen)
  model::Values values_, gradients_;
  std::vector<BlockGroup> groups_;              // of the model's blocks, in running order
  std::vector<bool> sliced_;                    // by block of the run: it is computed in slices along the sequence
  std::vector<std::vector<std::string>> dead_;  // by block: values whose last reader it is
  std::vector<model::Saved> saved_;
  StreamParts parts_;
  std::vector<KeptInputs> inputs_;    // of recomputed blocks
  std::vector<bool> done_;            // by block: it has been recomputed
  std::optional<size_t> offloading_;  // the block whose inputs are being copied to the host
  KeptInputs stage_inputs_;           // of the whole run, where it is recomputed
  std::vector<base::BookedMemory> booked_;
  std::vector<std::vector<mesh::ParamId>> named_;
};

}  // namespace cairn::parallel
