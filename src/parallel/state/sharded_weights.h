#pragma once
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/flat_layout.h"
#include "mesh/swap/access_order.h"
#include "mesh/swap/tensor_swapper.h"
#include "model/call.h"
#include "parallel/state/active_unit.h"
#include "parallel/state/shard_units.h"

namespace cairn::base {
class Log;
}
namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// Shards that are away between their uses (ZeRO-Infinity). The order in which passes use units is recorded, and as many as `read_ahead` are
// read before they are needed.
struct SwappedUnits {
  mesh::TensorSwapper* swapper = nullptr;  // null: shards stay on the device
  memory::TierKind home = memory::TierKind::disk;
  int64_t read_ahead = 0;
  int64_t gathered_bytes_max = 0;  // of gathered units on the device; 0: no limit
  base::Log* log = nullptr;        // hears once of an order that changes; may be null
};

// The weights that passes read, where the ranks of a group shard every unit. Each rank owns and updates its shard. Either the whole unit
// stays in memory between steps and is all-gathered after each update (ZeRO 1 and 2), or (`gathers`, ZeRO 3) a unit is all-gathered when a
// pass fetches it and dropped when the pass releases it.
class ShardedWeights final : public model::Weights {
 public:
  struct Parts {
    mesh::FlatLayout layout;
    std::vector<ShardUnit> units;
    std::vector<mesh::Placement> placements;  // by piece
    comm::Group* shard_group = nullptr;       // null: nothing is sharded
    bool gathers = false;
    SwappedUnits swapped = {};          // with `gathers`: shards that lie in a tier between their uses
    at::TensorOptions master, compute;  // how shards are kept and updated, and how passes read units
  };
  explicit ShardedWeights(Parts parts);

  at::Tensor get(mesh::ParamId id) const override;
  const mesh::Placement& placement(mesh::ParamId id) const override { return parts_.placements[static_cast<size_t>(id.first)]; }
  void fetch(std::span<const mesh::ParamId> ids) const override;
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next = {}) const override;

  // This rank's shard of a unit, in the master format.
  const at::Tensor& shard(int64_t unit) const { return shards_[static_cast<size_t>(unit)]; }
  // Shards have changed: passes from now on read the new values. Collective; starts the all-gathers, or drops gathered units.
  void updated();
  // The same where only these pieces have changed: nothing else is sent.
  void updated(const std::vector<bool>& changed);
  // Waits until those all-gathers are done, after which shards may be written.
  void wait_for_gathers() const;

  // The values that passes read now, of the chosen pieces alone: a frozen copy in the compute format, sharded where this is gathered (ZeRO
  // 3), whole otherwise. Its pieces are the chosen ones in their order.
  std::unique_ptr<ShardedWeights> copy_of(const std::vector<bool>& chosen) const;

  int64_t bytes() const;  // between steps
  // Bytes of gathered units, spare buffers included: current and peak.
  // Steps whose order of units was not that of the step before.
  int64_t order_changes() const { return order_.surprises(); }
  int64_t gathered_bytes() const { return gathered_now_; }
  int64_t peak_gathered_bytes() const { return peak_gathered_; }

 private:
  int64_t unit_of(mesh::ParamId id) const { return unit_of_[static_cast<size_t>(id.first)]; }
  void start_gather(int64_t unit) const;
  bool has_room(int64_t unit) const;
  void read_ahead(int64_t unit) const;
  void end_of_step() const;
  void start_packed_gather(int64_t unit, ActiveUnit changed) const;
  void finish_gather(int64_t unit) const;  // waits
  void drop(int64_t unit) const;

  Parts parts_;
  int me_ = 0;
  std::vector<int64_t> unit_of_;           // by piece
  std::vector<mesh::FlatLayout> layouts_;  // of each unit's pieces
  std::vector<at::Tensor> shards_;         // by unit
  mutable std::vector<at::Tensor> whole_;  // by unit; undefined: not gathered
  mutable std::vector<comm::Work> gathers_;
  // By unit: the message of a gather of some pieces, and where they belong; undefined: none is in flight.
  struct PackedGather {
    at::Tensor message = {};
    std::vector<mesh::Interval> runs = {};
  };
  mutable std::vector<PackedGather> packed_;
  std::vector<bool> changed_;  // what changed_units_ was made for
  std::vector<ActiveUnit> changed_units_;
  mutable std::vector<at::Tensor> spare_;  // dropped buffers, for reuse
  mutable mesh::AccessOrder order_;        // of gathers, where shards are swapped
  mutable int64_t gathered_now_ = 0, peak_gathered_ = 0;
};

}  // namespace cairn::parallel
