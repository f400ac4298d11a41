#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cairn::train {

struct Job;
struct Start;

// What decides the numbers of a run bit by bit, beside its snapshots. A run appends one to starts.jsonl, as one line of JSON, each time it
// is started or resumed.
struct RunStart {
  int64_t after_step = 0;  // 0: from the beginning
  int64_t ranks = 1;
  int64_t threads = 1;  // CPU threads of each rank
  std::string device, version, build, libtorch, processor, instructions;
  std::string data;    // digest of the data
  std::string folder;  // the working directory: relative paths of the recipe begin here
  std::string recipe;  // as in recipe.toml
  bool operator==(const RunStart&) const = default;
};

inline constexpr const char* kStartsFile = "starts.jsonl";

// The entry for this process, which is about to train from job.progress.steps_done.
RunStart this_start(const Job& job, const Start& start, int ranks);

// Appends an entry to the file. Drops entries that start at the same or a later step: their steps are computed anew.
void note_start(const std::filesystem::path& file, const RunStart& start);

// The entries, oldest first; empty if there is no such file. Throws corrupt_file with the line number if a line cannot be read.
std::vector<RunStart> read_starts(const std::filesystem::path& file);

// The differences that may change numbers, in words: "2 ranks then, 1 now". Folders and recipes are not compared.
std::vector<std::string> differences(const RunStart& then, const RunStart& now);

}  // namespace cairn::train
