#include <limits>

#include "comm/group.h"
#include "comm/world.h"
#include "train/build/build_steps.h"
#include "train/state/restore.h"

namespace cairn::train {

std::optional<snapshot::OpenSnapshot> find_resumed(const Job& job, comm::World& world, const Start& start) {
  if (!start.resume) return std::nullopt;
  // Islands that were killed are at most two snapshots apart.
  const int64_t every = job.config.settings.snapshot.every;
  const int64_t max_apart = every > 0 ? 2 * every : std::numeric_limits<int64_t>::max();
  return find_snapshot(world, *job.engine.step_group, job.config.out.string(), start.resume_step_last, max_apart);
}

}  // namespace cairn::train
