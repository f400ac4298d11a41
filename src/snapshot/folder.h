// Where the snapshots of a run are: RUN/snapshots/step-00000100. Names only, nothing about their content.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cairn::snapshot {

// A folder with the name of a snapshot. `replaced`: step-00000100.old, an earlier save of the same step; used only if the later one is
// missing or damaged.
struct StepFolder {
  int64_t step = 0;
  bool replaced = false;
  std::filesystem::path path;
};

std::filesystem::path snapshots_folder(const std::string& run_dir);
std::filesystem::path step_folder(const std::string& run_dir, int64_t step);

// All of them, best first: by descending step, a replaced one after the one that replaced it.
std::vector<StepFolder> step_folders(const std::string& run_dir);

// Parses the name of a folder; nothing for any other name.
std::optional<StepFolder> parse_step_folder(const std::filesystem::path& path);

// A file of a saved model, by its name within the folder: "config.json", "training/state.json".
struct SavedFile {
  std::string name;
  int64_t bytes = 0;
};
// The files of a snapshot or a Hugging Face directory and of its training/, by name.
std::vector<SavedFile> saved_files(const std::filesystem::path& folder);

// Throws bad_input unless `run_dir` is a folder with a recipe.toml.
void check_run_directory(const std::string& run_dir);

}  // namespace cairn::snapshot
