// The tensors of a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json lists.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mesh/named_tensor.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

// Where a tensor may also be found, and which tensors of a file mean nothing.
struct Aliases {
  std::map<std::string, std::vector<std::string>> others = {};  // by the name that is wanted: tried in order where that is missing
  std::vector<std::string> ignored_endings = {};
  std::vector<std::string> ignored = {};
};

// Throws corrupt_file, naming both, where a number in the tensor is NaN or infinite.
void check_finite(const at::Tensor& tensor, const std::string& path, const std::string& name);

// The files are not trusted: an index may name plain files of its own folder only, each tensor must be in the shard that the index
// says, and nothing may be in two shards. Opening checks all headers and reads no tensor.
class WeightFiles {
 public:
  // `one` and `index` are file names in the folder: model.safetensors and model.safetensors.index.json, or an adapter's.
  static WeightFiles open(const std::string& folder, const std::string& one = "model.safetensors",
                          const std::string& index = "model.safetensors.index.json");

  std::vector<std::string> names() const;
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  bool has(const std::string& name) const { return entries_.contains(name); }
  const TensorEntry& entry(const std::string& name) const { return *entries_.at(name).second; }
  at::Tensor view(const std::string& name) const { return files_[entries_.at(name).first].view(entry(name)); }
  const std::string& path() const { return path_; }  // of the file or the index

  // Throws bad_input unless the files hold just these tensors, as floating-point numbers: what is missing, unexpected, of another shape or
  // of another kind is named, at most ten of each. Only names and shapes are looked at: tensors without memory will do.
  void check(const mesh::NamedTensors& wanted, const Aliases& aliases = {}) const;
  // Checks, then copies into these by name, to their device and dtype (bf16, fp16, fp32 and fp64 are converted). A tensor with a number
  // that is not finite is refused as damaged.
  void load_into(const mesh::NamedTensors& into, const Aliases& aliases = {}) const;

 private:
  void add(Safetensors file);
  // The name under which a tensor that is wanted lies here; where there is none, the wanted name itself.
  std::string found_name(const std::string& wanted, const Aliases& aliases) const;

  std::string path_;
  std::vector<Safetensors> files_;
  std::map<std::string, std::pair<size_t, const TensorEntry*>> entries_;
};

}  // namespace cairn::snapshot
