// State that a restarted run is restored from before the disk is asked: the memory of a process that outlives its ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

class RestoreSource {
 public:
  virtual ~RestoreSource() = default;

  // The step of the newest state that all ranks can get from here together. Nothing: there is none, or not the whole of one; then the run
  // is restored from the disk. Collective; the same on all ranks. The plan and the step group of the job are known, no more.
  virtual std::optional<int64_t> newest_step(Job& job, comm::World& world) = 0;

  // Loads that state into the job, as restore() does from a snapshot, and sets job.progress. Returns why it cannot be used, the same on all
  // ranks; then the disk is asked. Empty: it is loaded. Collective.
  virtual std::string load(Job& job, comm::World& world) = 0;
};

}  // namespace cairn::train
