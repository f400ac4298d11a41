// What a saved model contains, without reading tensors.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder/shape.h"
#include "snapshot/folder.h"
#include "snapshot/safetensors_header.h"

namespace cairn::snapshot {

struct InspectReport {
  struct Tensor {
    std::string file;
    TensorEntry entry;
  };
  std::string path;
  std::optional<int64_t> step;                // of a snapshot
  std::string version;                        // of the Cairn that wrote it; empty without a manifest
  std::optional<model::DecoderShape> shape;   // nothing without a config.json
  std::vector<SavedFile> files;               // by name
  std::vector<Tensor> tensors;                // in the order of the files and their bytes
  std::map<std::string, std::string> texts;   // training/state.json, training/recipe.toml, training/plan.json, where they exist
  std::map<std::string, int64_t> parameters;  // elements of the model's tensors, by dtype

  int64_t bytes() const;
};

// The saved models that DIR stands for: itself, or the snapshots of a run, newest first. Throws bad_input for anything else.
std::vector<std::string> saved_folders(const std::string& folder);

// The content of one such folder. Checks headers, but no checksums: verify does that. Throws corrupt_file or bad_input naming the file.
InspectReport inspect(const std::string& folder);

}  // namespace cairn::snapshot
