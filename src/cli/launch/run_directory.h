// Where a run writes, and how all ranks come to know it.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/recipe.h"

namespace cairn::comm {
class World;
}

namespace cairn::cli {

// Where a run writes, and whether it resumes what is there.
struct RunDirectory {
  std::filesystem::path path;
  bool resume = false;
};

// `out` and `resume` as given (empty: not given), `name` what the run is called otherwise. Rules:
//   --resume DIR     continues DIR, which must be a run directory;
//   --resume auto    continues --out, or else the newest of runs/NAME, runs/NAME-2, ...; starts afresh where there is none;
//   --out DIR        must not hold a run already;
//   neither          the first free of runs/NAME, runs/NAME-2, ...
RunDirectory choose_run_directory(const std::string& out, const std::string& resume, const std::string& name);

// What rank 0 decides for all ranks: where the run writes, whether it resumes, and the text of the recipe.
struct RunDecision {
  RunDirectory run;
  std::optional<base::Recipe::File> recipe;  // without the command line's keys; none: every key has its default
};

// Calls `decide` on rank 0 and broadcasts its result, so that machines need no shared file system. Collective.
RunDecision broadcast_decision(comm::World& world, const std::function<RunDecision()>& decide);

}  // namespace cairn::cli
