// What lies in a saved model, without reading a tensor: for people, and for programs that ask.
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
  std::string version;                        // of the Cairn that wrote it; empty where there is no manifest
  std::optional<model::DecoderShape> shape;   // nothing where there is no config.json
  std::vector<SavedFile> files;               // by name
  std::vector<Tensor> tensors;                // in the order of the files and their bytes
  std::map<std::string, std::string> texts;   // training/state.json, training/recipe.toml, training/plan.json: those that there are
  std::map<std::string, int64_t> parameters;  // elements of the model's tensors, by dtype

  int64_t bytes() const;
};

// The folders of saved models that DIR means: itself, or of a run its snapshots, newest first. Refuses what is none of them.
std::vector<std::string> saved_folders(const std::string& folder);

// Of one such folder. Headers are checked, checksums are not: verify does that. Throws corrupt_file or bad_input naming the file.
InspectReport inspect(const std::string& folder);

}  // namespace cairn::snapshot
