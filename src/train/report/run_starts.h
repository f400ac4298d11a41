#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cairn::train {

struct Job;
struct Start;

// What decides the bits of a run's numbers, beside its snapshots: written down each time a run is started or resumed, one JSON object a
// line.
struct RunStart {
  int64_t after_step = 0;  // 0: from the beginning
  int64_t ranks = 1;
  int64_t threads = 1;  // of each rank
  std::string device, version, build, libtorch, processor, instructions;
  std::string data;    // digest of what the samples are made of
  std::string folder;  // where it was started: relative paths of the recipe begin here
  std::string recipe;  // as in recipe.toml
  bool operator==(const RunStart&) const = default;
};

inline constexpr const char* kStartsFile = "starts.jsonl";

// This process, about to go on after job.progress.steps_done.
RunStart this_start(const Job& job, const Start& start, int ranks);

// Adds one to the file. Those after which the run has gone back before their first step are dropped.
void note_start(const std::filesystem::path& file, const RunStart& start);

// Oldest first; none where there is no such file. A line that cannot be read is corrupt_file with its number.
std::vector<RunStart> read_starts(const std::filesystem::path& file);

// In words, what is not as it was and may change bits: "2 ranks then, 1 now". Folders and recipes are not compared.
std::vector<std::string> differences(const RunStart& then, const RunStart& now);

}  // namespace cairn::train
