// Where the snapshots of a run lie: RUN/snapshots/step-00000100. Names only; what is inside is the business of others.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cairn::snapshot {

// A folder that bears the name of a snapshot. `replaced`: step-00000100.old, which gives way to a newer save of the same step and counts
// only where that one is missing or damaged.
struct StepFolder {
  int64_t step = 0;
  bool replaced = false;
  std::filesystem::path path;
};

std::filesystem::path snapshots_folder(const std::string& run_dir);
std::filesystem::path step_folder(const std::string& run_dir, int64_t step);

// All of them, best first: by step downwards, a replaced one after the one that replaced it.
std::vector<StepFolder> step_folders(const std::string& run_dir);

// The step that a folder's name states; nothing for any other name.
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
