#pragma once
#include <optional>
#include <string>

#include "snapshot/rank_part.h"
#include "snapshot/snapshot.h"

namespace cairn::base {
class Log;
}  // namespace cairn::base

namespace cairn::train {

struct Job;

// A snapshot of the job, as one rank writes it: parameters, optimizer and sync state by name. Nothing is sent between ranks: all of them
// compute who writes what (parallel/state/state_map.h). Tensors are the live ones.
struct RankSnapshot {
  snapshot::RankPart part;
  std::optional<snapshot::Contents> rest;  // on the first rank of the step group: small state, progress, what other programs need
  int64_t bytes = 0;                       // that all ranks write together, about
};
RankSnapshot collect(Job& job);
// What another rank of the step group writes, without its values: tensors of no device. Refuses steps that keep state on each rank.
RankSnapshot collect_of(Job& job, int rank);

// Loads a snapshot into the job. Refuses one of another seed, subset or reference model. Returns which bytes of it are damaged, the same on
// all ranks of the step group; then the job must load another one. Empty: it is loaded. Collective.
std::string restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir);

}  // namespace cairn::train
