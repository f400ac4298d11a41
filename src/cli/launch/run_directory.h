// Where a run writes, and how all ranks come to know it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/recipe.h"
#include "snapshot/run_lock.h"

namespace cairn::comm {
class World;
}

namespace cairn::cli {

// Where a run writes, and whether it resumes what is there.
struct RunDirectory {
  std::filesystem::path path;
  bool resume = false;
  int64_t step = 0;       // resume: the newest snapshot that all islands have, as far as their files are visible here; 0: none
  int64_t furthest = 0;   // resume: the newest snapshot that any island has here; 0: none
  std::string note = {};  // a line for the user; empty: none
};

// The options that say where a run writes. Rules:
//   --resume DIR     continues DIR, which must be a run directory;
//   --resume auto    continues --out; else the newest run in runs/, of this name if a recipe or data is given; else starts a new run;
//   --out DIR        must not hold a run already;
//   neither          the first free of runs/NAME, runs/NAME-2, ...
struct RunRequest {
  std::string out, resume;   // as given; empty: not given
  std::string recipe, data;  // as given: they name the run
};

// The name of a run: that of its recipe, or of its data ("novels/*.txt" is novels), or "stories".
std::string run_name(const RunRequest& request);

// What the rules choose now, for a look at it: nothing is made, and another run may take it.
RunDirectory find_run_directory(const RunRequest& request);

// A run directory that belongs to this run as long as the lock lives.
struct ClaimedRun {
  RunDirectory run;
  std::unique_ptr<snapshot::RunLock> lock;
};

// Takes the directory that the rules choose, so that no two runs ever have the same one. Refuses one that another run uses.
ClaimedRun claim_run_directory(const RunRequest& request);

// What rank 0 decides for all ranks: where the run writes, whether it resumes, the text of the recipe, and the day.
struct RunDecision {
  RunDirectory run;
  std::optional<base::Recipe::File> recipe = {};  // without the command line's keys; none: every key has its default
  bool saved = false;                             // the recipe is the resumed run's own
  std::filesystem::path folder = {};              // saved: where its relative paths begin; empty: here
  std::string day = {};                           // on which the run starts (train::Start::day)
};

// Calls `decide` on rank 0 and broadcasts its result, so that machines need no shared file system. Collective.
RunDecision broadcast_decision(comm::World& world, const std::function<RunDecision()>& decide);

}  // namespace cairn::cli
