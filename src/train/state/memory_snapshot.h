// Snapshots in the memory of keepers (elastic/keeper.h): saving them, and what a later generation of ranks restores from.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "elastic/segment.h"
#include "train/state/keeper_group.h"
#include "train/state/memory_options.h"
#include "train/state/restore_source.h"

namespace cairn::train {

struct RankSnapshot;

class MemorySnapshots final : public RestoreSource {
 public:
  // `door`: the descriptor that the agent has given to this rank (CAIRN_KEEPER_FD). Calls at it only where a recipe wants snapshots.
  explicit MemorySnapshots(int door) : door_(door) {}
  ~MemorySnapshots() override;

  std::optional<int64_t> newest_step(Job& job, comm::World& world) override;
  std::string load(Job& job, comm::World& world) override;

  // Copies the job's state into the keepers' memory; they make it safe while training goes on. Waits for the version before. Where a keeper
  // is gone, training goes on with less protection, and a warning says so. Collective.
  void save(Job& job, comm::World& world);
  // The seconds that training has waited for saves since the last call.
  double take_held_up_s() { return base_seconds(std::exchange(held_up_, {})); }

 private:
  static double base_seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }
  bool open(Job& job, comm::World& world);
  std::string meet(Job& job, comm::World& world);
  std::string wait_for_commit() const;
  std::string lay_out(int64_t bytes, const MemorySnapshotOptions& options);
  std::string write(const RankSnapshot& saved, int64_t step);
  void degraded(const Job& job, comm::World& world, const std::string& why);

  int door_;
  std::unique_ptr<elastic::KeeperClient> keeper_;
  std::unique_ptr<KeeperGroup> group_;  // null: the keepers have not met, or one of them is gone
  std::optional<MemoryVersion> found_;  // to restore from
  elastic::VaultSpec spec_;             // of the layout that is written; its id is empty before the first save
  std::array<elastic::SegmentMap, 2> maps_;
  int64_t room_ = 0, offset_ = 0;  // of this rank in it
  uint64_t serial_ = 0;            // of the last snapshot
  std::chrono::nanoseconds held_up_{0};
  bool reduced_ = false;  // a warning has said so
  bool warned_ = false;   // of what parity does not cover
};

}  // namespace cairn::train
