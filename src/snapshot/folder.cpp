#include "snapshot/folder.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/check.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

fs::path snapshots_folder(const std::string& run_dir) { return fs::path(run_dir) / "snapshots"; }

fs::path step_folder(const std::string& run_dir, int64_t step) { return snapshots_folder(run_dir) / fmt::format("step-{:08}", step); }

std::optional<StepFolder> parse_step_folder(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view digits = name;
  if (!digits.starts_with("step-")) return std::nullopt;
  digits.remove_prefix(5);
  StepFolder folder{.path = path};
  if (digits.ends_with(".old")) {
    folder.replaced = true;
    digits.remove_suffix(4);
  }
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), folder.step);
  if (error != std::errc() || end != digits.data() + digits.size() || folder.step < 0 || digits != fmt::format("{:08}", folder.step))
    return std::nullopt;
  return folder;
}

std::vector<StepFolder> step_folders(const std::string& run_dir) {
  std::vector<StepFolder> found;
  std::error_code error;
  for (fs::directory_iterator it(snapshots_folder(run_dir), error), end; !error && it != end; it.increment(error)) {
    if (const auto folder = parse_step_folder(it->path())) found.push_back(*folder);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    base::fail_input("{}: cannot be listed: {}", snapshots_folder(run_dir).string(), error.message());
  std::sort(found.begin(), found.end(),
            [](const StepFolder& a, const StepFolder& b) { return std::tuple(-a.step, a.replaced) < std::tuple(-b.step, b.replaced); });
  return found;
}

std::vector<SavedFile> saved_files(const fs::path& folder) {
  std::vector<SavedFile> files;
  std::error_code error;  // a file may disappear meanwhile
  for (const std::string part : {"", "training/"})
    for (fs::directory_iterator it(folder / part, error), end; !error && it != end; it.increment(error))
      if (it->is_regular_file(error)) files.push_back({part + it->path().filename().string(), static_cast<int64_t>(it->file_size(error))});
  std::sort(files.begin(), files.end(), [](const SavedFile& a, const SavedFile& b) { return a.name < b.name; });
  return files;
}

void check_run_directory(const std::string& run_dir) {
  std::error_code error;
  if (!fs::is_directory(run_dir, error)) base::fail_input("{}: not a run directory (no such folder)", run_dir);
  if (!fs::is_regular_file(fs::path(run_dir) / "recipe.toml", error))
    base::fail_input("{}: not a run directory (no recipe.toml there)", run_dir);
}

}  // namespace cairn::snapshot
