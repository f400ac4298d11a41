#pragma once
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/flat_layout.h"
#include "model/call.h"
#include "parallel/state/shard_units.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// The weights that passes read, where each of a group's ranks keeps (and updates) a part of every unit. Either the whole is in memory
// between steps and brought up to date after each update, or (`gathers`) units are brought together when a pass fetches them and dropped
// when it releases them.
class ShardedWeights final : public model::Weights {
 public:
  struct Parts {
    mesh::FlatLayout layout;
    std::vector<ShardUnit> units;
    std::vector<mesh::Placement> placements;  // by piece
    comm::Group* shard_group = nullptr;       // null: this rank keeps all
    bool gathers = false;
    at::TensorOptions master, compute;  // how parameters are kept, and how passes read them
  };
  explicit ShardedWeights(Parts parts);

  at::Tensor get(mesh::ParamId id) const override;
  const mesh::Placement& placement(mesh::ParamId id) const override { return parts_.placements[static_cast<size_t>(id.first)]; }
  void fetch(std::span<const mesh::ParamId> ids) const override;
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next = {}) const override;

  // This rank's part of a unit, as it is kept and updated.
  const at::Tensor& shard(int64_t unit) const { return shards_[static_cast<size_t>(unit)]; }
  // What is kept has changed: passes from now on read the new values. Collective; starts the messages.
  void updated();
  // Waits until those messages are over: what is kept may be written to outside of a step.
  void wait_for_gathers() const;

  int64_t bytes() const;  // between steps
  // Bytes brought together beside what is kept, buffers that wait for the next included: now, and at most so far.
  int64_t gathered_bytes() const { return gathered_now_; }
  int64_t peak_gathered_bytes() const { return peak_gathered_; }

 private:
  int64_t unit_of(mesh::ParamId id) const { return unit_of_[static_cast<size_t>(id.first)]; }
  void start_gather(int64_t unit) const;  // starts
  void drop(int64_t unit) const;

  Parts parts_;
  int me_ = 0;
  std::vector<int64_t> unit_of_;           // by piece
  std::vector<mesh::FlatLayout> layouts_;  // of each unit's pieces
  std::vector<at::Tensor> shards_;         // by unit
  mutable std::vector<at::Tensor> whole_;  // by unit; undefined: not here
  mutable std::vector<comm::Work> gathers_;
  mutable std::vector<at::Tensor> spare_;  // buffers that were dropped, to be used again
  mutable int64_t gathered_now_ = 0, peak_gathered_ = 0;
};

}  // namespace cairn::parallel
