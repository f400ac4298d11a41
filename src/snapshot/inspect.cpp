#include "snapshot/inspect.h"

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "model/families/config.h"
#include "snapshot/manifest.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kInspectedTextBytesMax = 10'000'000;

bool is_models(const std::string& file) { return file.find('/') == std::string::npos; }

}  // namespace

int64_t InspectReport::bytes() const {
  int64_t sum = 0;
  for (const SavedFile& file : files) sum += file.bytes;
  return sum;
}

std::vector<std::string> saved_folders(const std::string& folder) {
  std::error_code error;
  const fs::path place = folder;
  if (!fs::is_directory(place, error))
    base::fail_input("{}: no such directory; give a run, a snapshot or a Hugging Face directory", folder);
  if (fs::exists(place / kManifestFile, error) || fs::exists(place / "config.json", error)) return {folder};
  if (!fs::exists(place / "recipe.toml", error) && !parse_step_folder(place))
    base::fail_input("{}: no manifest.json, config.json or recipe.toml there: not a snapshot, a Hugging Face directory or a run", folder);
  if (parse_step_folder(place)) return {folder};  // a snapshot whose manifest is gone
  std::vector<std::string> found;
  for (const StepFolder& step : step_folders(folder)) found.push_back(step.path.string());
  if (found.empty()) base::fail_input("{}: this run has no snapshot yet", folder);
  return found;
}

InspectReport inspect(const std::string& folder) {
  InspectReport found;
  found.path = folder;
  const fs::path place = folder;
  found.files = saved_files(place);
  for (const SavedFile& file : found.files) {
    const std::string path = place / file.name;
    if (file.name == kManifestFile) {
      const Manifest manifest = parse_manifest(base::read_file(path, kManifestBytesMax), path);
      found.step = manifest.step;
      found.version = manifest.version;
    } else if (file.name == "config.json") {
      found.shape = model::parse_config(base::read_file(path, kInspectedTextBytesMax), path);
    } else if (file.name.ends_with(".safetensors")) {
      const Safetensors tensors(path);
      for (const TensorEntry& entry : tensors.entries()) {
        found.tensors.push_back({file.name, entry});
        if (is_models(file.name)) found.parameters[word_of(entry.dtype)] += (entry.end - entry.begin) / bytes_of(entry.dtype);
      }
    } else if (!is_models(file.name) && (file.name.ends_with(".json") || file.name.ends_with(".toml"))) {
      found.texts[file.name] = base::read_file(path, kInspectedTextBytesMax);
    }
  }
  return found;
}

}  // namespace cairn::snapshot
