// Writes a model's directory one tensor after the other, so that the model is never in memory as a whole.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files.h"
#include "model/decoder/shape.h"
#include "snapshot/safetensors.h"

namespace cairn::study {

// One safetensors file whose tensors are written in the order of their entries.
class TensorFileWriter {
 public:
  // Of the entries, name, dtype and shape are read.
  TensorFileWriter(const std::filesystem::path& path, std::vector<snapshot::TensorEntry> entries);
  // The next tensor, converted to the dtype of its entry.
  void write(const std::string& name, const at::Tensor& tensor);
  void commit();

 private:
  std::vector<snapshot::TensorEntry> entries_;
  size_t next_ = 0;
  base::FileWriter file_;
};

// A directory that appears with commit(): model.safetensors, masks.safetensors, config.json and texts.
class PrunedModelWriter {
 public:
  PrunedModelWriter(std::filesystem::path folder, const model::DecoderShape& shape, std::vector<snapshot::TensorEntry> tensors,
                    std::vector<snapshot::TensorEntry> masks, std::map<std::string, std::string> texts);
  ~PrunedModelWriter();
  PrunedModelWriter(const PrunedModelWriter&) = delete;
  PrunedModelWriter& operator=(const PrunedModelWriter&) = delete;

  TensorFileWriter& tensors() { return *tensors_; }
  TensorFileWriter& masks() { return *masks_; }
  void commit();

 private:
  std::filesystem::path folder_, aside_;
  std::optional<TensorFileWriter> tensors_, masks_;
};

}  // namespace cairn::study
