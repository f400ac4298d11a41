#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/flat_gradients.h"
#include "parallel/state/shard_units.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// The way of gradients from the sink, where blocks put them, to the ranks that keep the parameters. Each parameter's gradient is first
// summed over the ranks that hold the same part of it (copies), then each unit is summed over the ranks that share its state out, and each
// of them gets its part. All of it runs while backward still does, in one order on all ranks.
//
// `whole`: one buffer holds the gradients of all units until the last pass of a step. `reuse_memory`: each unit has one of its own, and
// memory for it from its first contribution until the next step begins, so that activations have it meanwhile. Otherwise a unit has a
// buffer only from its first contribution until it is on its way, two such buffers wait at most, and each pass sends its own gradients,
// which add up where they are kept.
class GradientReducer final : public mesh::Gradients {
 public:
  struct Parts {
    mesh::FlatLayout layout;  // of what is trained and here
    std::vector<int32_t> uses;
    std::vector<comm::Group*> copies;  // by piece; null: this rank alone has it
    std::vector<ShardUnit> units;
    comm::Group* shard_group = nullptr;  // null: this rank keeps all
    comm::Group* memory = nullptr;       // whose memory the buffers come from
    at::TensorOptions options;
    bool whole = true;
    bool reuse_memory = false;         // for a rank that is alone, and whose passes are not recorded
    bool accumulate_unsharded = true;  // not `whole`: a step of several passes is nevertheless treated so, while it lasts
    bool in_order = true;              // passes come one after the other; otherwise every step is treated so
  };
  // Told the index of a part in kept_by(layout, units, rank of this one among the keepers), when its gradient is complete.
  using Announce = std::function<void(int64_t kept)>;

  explicit GradientReducer(Parts parts);
  ~GradientReducer() override;

  // A step of `passes` backward passes here and at most `max_passes` on any rank.
  void begin(int64_t passes, int64_t max_passes, Announce announce);
  // After each pass: what it did not reach counts as zero in it.
  void skip(mesh::ParamId id) override;
  void end_pass() override;
  // In the place of all passes, where one rank has what they would put here already: a recording of them ran.
  void mark_all_complete();
  // Whether the passes so far have brought everything, so that `finish` has nothing to add.
  bool is_complete() const { return next_ < 0; }
  // After the last of them. All kept gradients are complete and announced when it returns.
  void finish();

  // This rank's part of a unit's gradient.
  const at::Tensor& shard(int64_t unit) const { return shards_[static_cast<size_t>(unit)]; }

  void outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(mesh::ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void add(mesh::ParamId id, const at::Tensor& gradient) override;
  void add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  bool accumulates_in_fp32(mesh::ParamId) const override {
    return parts_.options.dtype() == at::kFloat || parts_.options.dtype() == at::kDouble;
  }
  void expect_more(mesh::ParamId id, int64_t contributions) override { open(id).expect_more(local(id), contributions); }

  // The gradient of this parameter is not summed over its copies any more: a mistake, for whoever wants to see it found. False: it is not
  // summed anyway.
  bool skip_copy_reduction(const std::string& parameter);

  int64_t bytes() const;  // held between steps
  int64_t current_bytes() const { return held_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  static constexpr int64_t kNotStarted = -1;  // nothing has come for the unit yet

  // A unit in the current pass (or step, where gradients stay whole).
  struct Open {
    std::unique_ptr<mesh::FlatGradients> sink;
    at::Tensor buffer;
    int64_t missing = kNotStarted;  // pieces that are not complete yet
  };
  struct Reduction {
    int64_t unit = 0;
    bool last = true;  // of the step
    at::Tensor buffer = {};
    comm::Work work = {};
  };

  bool stays_unsharded() const { return parts_.whole || !parts_.in_order || (parts_.accumulate_unsharded && max_passes_ > 1); }
  int64_t unit_of(mesh::ParamId id) const { return unit_of_[static_cast<size_t>(id.first)]; }
  mesh::ParamId local(mesh::ParamId id) const;
  mesh::Gradients& open(mesh::ParamId id);
  void open_unit(int64_t unit);
  void count_held(int64_t bytes);
  bool is_single_rank() const;  // no other rank has a part in these gradients
  void close(int64_t unit);
  void completed(int64_t piece);  // by this rank's blocks
  void summed(int64_t piece);     // over its copies
  void send_ready_units();
  void finish_reduction(Reduction& one);
  void limit_in_flight(size_t most);
  void collect_finished();  // what has come meanwhile, without waiting
  void wait_for_copies();

  Parts parts_;
  int me_ = 0;
  std::vector<int64_t> unit_of_;                     // by piece
  std::vector<std::vector<int64_t>> parts_of_unit_;  // indices of this rank's kept parts
  std::vector<Open> open_;
  std::vector<at::Tensor> shards_;
  at::Tensor whole_;                                            // where gradients stay whole, and are not lent their memory
  std::vector<char> has_shard_;                                 // something is in kept_ already, in this step
  std::deque<std::pair<int64_t, comm::Work>> copy_reductions_;  // pieces being summed
  std::deque<Reduction> in_flight_;
  std::vector<at::Tensor> spare_;
  int64_t passes_ = 0, max_passes_ = 0;  // of this step
  int64_t passes_done_ = 0;
  int64_t rounds_ = 1, round_ = 0;  // how often every unit is sent in this step
  int64_t next_ = 0;                // the unit that leaves next: from the last to the first
  int64_t held_ = 0, peak_bytes_ = 0;
  Announce announce_;
};

}  // namespace cairn::parallel
