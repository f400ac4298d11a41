#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/flat_gradients.h"
#include "mesh/swap/tensor_swapper.h"
#include "parallel/state/active_unit.h"
#include "parallel/state/shard_units.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// The gradient sink of a rank under a plan, and the reduction of what blocks put there. Two sums, both started while backward still runs,
// in the same order on all ranks:
//   1. Every parameter's gradient is all-reduced over its `copies`: the ranks of this replica that hold the same part of it (replicated
//      along tp, or used by several pipeline stages).
//   2. Every shard unit (shard_units.h) is reduce-scattered over the `shard_group`: each rank keeps the gradient of its shard (ZeRO).
// Sums over replicas are not done here: they are the sync rule's.
//
// How much memory gradients take depends on Parts:
//   unsharded     One buffer holds the gradients of all units until the last pass of a step (ZeRO 0 and 1).
//   reuse_memory  Each unit has a buffer of its own, allocated from its first contribution until the next step begins, so that activations
//                 have the memory before (gradient buffer reuse).
//   neither       A unit has a buffer from its first contribution until it is reduced. At most two such buffers exist; every pass reduces
//                 its own gradients, which accumulate in the shards (ZeRO 2 and 3, and shards that a swapper has).
// Not thread-safe: begin, passes and finish are called in this order by the thread that runs the passes.
class GradientReducer final : public mesh::Gradients {
 public:
  struct Parts {
    mesh::FlatLayout layout;           // of the parameters that are trained and on this rank
    std::vector<int32_t> uses;         // by piece: how many contributions one pass makes
    std::vector<comm::Group*> copies;  // by piece; null: no other rank of the replica has it
    std::vector<ShardUnit> units;
    comm::Group* shard_group = nullptr;  // null: nothing is sharded
    comm::Group* memory = nullptr;       // the group that allocates the buffers; null: plain tensors
    at::TensorOptions options;
    bool unsharded = true;
    bool reuse_memory = false;               // for a single rank without CUDA graphs
    bool accumulate_unsharded = true;        // a step of several passes uses an unsharded buffer, and reduces once at its end
    bool in_order = true;                    // passes come one after the other; otherwise (pipelines) every step uses an unsharded buffer
    mesh::TensorSwapper* swapper = nullptr;  // shards lie in a tier between their uses; then nothing stays unsharded. Null: on the device
    memory::TierKind home = memory::TierKind::disk;
  };
  // Called when the gradient of a slice is complete, with its index in shard_slices(layout, units, rank in the shard group).
  using Announce = std::function<void(int64_t slice)>;

  explicit GradientReducer(Parts parts);
  ~GradientReducer() override;

  // From the next step on only these pieces get gradients; empty: all. The others take no contributions, are not sent, and their gradients
  // are zero. Identical on all ranks that reduce together.
  void set_active(const std::vector<bool>& pieces);

  // Begins a step of `passes` backward passes on this rank and at most `max_passes` on any rank. `with_samples`: by pass, which of them
  // have samples, where empty ones may come before others (step_plan/); empty: the first `passes` have. `some_leave_out`: passes may leave
  // out layers, whose gradients then count as zero in them; they are complete only when the step ends.
  void begin(int64_t passes, int64_t max_passes, Announce announce, std::vector<char> with_samples = {}, bool some_leave_out = false);
  // A pass without samples reports the parameters that it does not reach; they count as zero.
  void skip(mesh::ParamId id) override;
  // Complete gradients of held parameters wait for `reduce` or `finish`. Only with an unsharded buffer: otherwise a unit must leave before
  // the next opens. Ranks that reduce together must call both in the same order. `begin` ends all holds.
  void hold(mesh::ParamId id) override;
  void reduce(mesh::ParamId id) override;
  // After each pass; what it did not reach counts as zero.
  void end_pass() override;
  // Marks all gradients complete after a CUDA-graph replay (single rank only).
  void mark_all_complete();
  // Whether all gradients have been reduced, so that `finish` has nothing left to start.
  bool is_complete() const { return next_ < 0; }
  // After the last pass. When it returns, all gradients of this rank's shards are complete and announced.
  void finish();

  // Instead of `finish`, where the passes of the step were given up in the middle: gradients are undefined until the next step. Only where
  // no other rank takes part in the reductions.
  void abandon();

  // The gradient of this rank's shard of a unit.
  const at::Tensor& shard(int64_t unit) const { return shards_[static_cast<size_t>(unit)]; }

  void outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(mesh::ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void outer_grouped(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override;
  void add(mesh::ParamId id, const at::Tensor& gradient) override;
  void add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  bool accumulates_in_fp32(mesh::ParamId) const override {
    return parts_.options.dtype() == at::kFloat || parts_.options.dtype() == at::kDouble;
  }
  void expect_more(mesh::ParamId id, int64_t contributions) override { open(id).expect_more(local(id), contributions); }

  // Fault injection: from now on the gradient of this parameter is not summed over its copies. False: it has none.
  bool skip_copy_reduction(const std::string& parameter);

  int64_t bytes() const;  // between steps
  int64_t current_bytes() const { return held_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  static constexpr int64_t kNotStarted = -1;  // no contribution to the unit yet

  // What of a unit is reduced: all of it, or the active pieces, one after the other (parallel/state/active_unit.h).
  bool is_active(int64_t piece) const { return active_.empty() || active_[static_cast<size_t>(piece)]; }
  bool is_ready(int64_t unit) const;  // to be reduced
  void pass_over(int64_t unit);
  void start_unit_reduction(int64_t unit, at::Tensor buffer);

  // A unit in the current pass (or step, where gradients stay unsharded).
  struct Open {
    std::unique_ptr<mesh::FlatGradients> sink;
    at::Tensor buffer;
    int64_t missing = kNotStarted;  // pieces that are not complete
  };
  struct Reduction {
    int64_t unit = 0;
    bool last = true;  // of the step
    at::Tensor buffer = {};
    comm::Work work = {};
    at::Tensor packed = {};  // the active pieces, where not all of them are; undefined: the buffer itself is reduced
  };

  bool stays_unsharded() const { return parts_.unsharded || !parts_.in_order || (parts_.accumulate_unsharded && max_passes_ > 1); }
  int64_t unit_of(mesh::ParamId id) const { return unit_of_[static_cast<size_t>(id.first)]; }
  mesh::ParamId local(mesh::ParamId id) const;
  mesh::Gradients& open(mesh::ParamId id);
  void open_unit(int64_t unit);
  void count_held(int64_t bytes);
  bool is_single_rank() const;  // no other rank takes part in these reductions
  void close(int64_t unit);
  void completed(int64_t piece);  // this rank's contributions are complete
  void start_reduction(int64_t piece);
  void reduce_released();              // of the complete pieces that waited, those that are not held any more
  void start_in_order(int64_t piece);  // of ordered_: when those after it have begun
  void summed(int64_t piece);          // the sum over its copies is complete
  void send_ready_units();
  void finish_reduction(Reduction& one);
  void limit_in_flight(size_t most);
  void collect_finished();  // without waiting
  void wait_for_copies();

  Parts parts_;
  int me_ = 0;
  std::vector<bool> active_;                         // by piece; empty: all are
  std::vector<ActiveUnit> active_units_;             // by unit; empty: all are
  std::vector<int64_t> unit_of_;                     // by piece
  std::vector<std::vector<int64_t>> parts_of_unit_;  // by unit: indices of this rank's slices
  std::vector<Open> open_;
  std::vector<at::Tensor> shards_;
  at::Tensor whole_;                                            // the unsharded buffer; undefined with reuse_memory
  std::vector<char> has_shard_;                                 // by unit: its shard holds gradients of this step already
  std::deque<std::pair<int64_t, comm::Work>> copy_reductions_;  // pieces being summed over their copies, in order
  std::deque<Reduction> in_flight_;
  std::vector<char> held_back_;  // by piece: complete gradients wait for `reduce`
  std::deque<int64_t> waiting_;  // complete pieces that are held back, in order
  // Pieces of many layers that other ranks have too. A pipeline stage may begin within a layer, so that each stage completes them in an
  // order of its own: their sums start from the last to the first.
  std::vector<int64_t> ordered_;
  std::set<int64_t> complete_;  // of those, not begun
  int64_t next_ordered_ = -1;
  std::vector<at::Tensor> spare_;
  int64_t passes_ = 0, max_passes_ = 0;  // of this step
  int64_t passes_done_ = 0;
  std::vector<char> with_samples_;  // by pass; empty: the first passes_
  bool some_leave_out_ = false;
  int64_t rounds_ = 1, round_ = 0;  // how often every unit is reduced in this step
  int64_t next_ = 0;                // the unit that is reduced next: from the last to the first, as backward goes
  int64_t held_ = 0, peak_bytes_ = 0;
  Announce announce_;
};

}  // namespace cairn::parallel
