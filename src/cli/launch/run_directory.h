#pragma once
#include <filesystem>
#include <string>

namespace cairn::cli {

// Where a run writes and whether it continues what is there.
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

}  // namespace cairn::cli
