// The tensors of a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json lists.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mesh/named_tensor.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

// Other names of tensors, and tensors of a file to ignore.
struct Aliases {
  std::map<std::string, std::vector<std::string>> others = {};  // by wanted name: names that are tried in order if it is missing
  // By wanted name: a tensor [n, rows, columns] that files may have as n lists of matrices, each stacked along rows (experts).
  std::map<std::string, std::vector<std::vector<std::string>>> stacks = {};
  std::vector<std::string> ignored_endings = {};
  std::vector<std::string> ignored = {};
};

// Throws corrupt_file, naming both, where a number in the tensor is NaN or infinite.
void check_finite(const at::Tensor& tensor, const std::string& path, const std::string& name);

// The files are not trusted: an index may only name plain files of its own folder, each tensor must be in the shard that the index names,
// and no tensor may be in two shards. Opening checks all headers and reads no tensors.
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
  // A wanted tensor, under whatever name it is here; undefined where it is not.
  at::Tensor find(const std::string& wanted, const Aliases& aliases) const;
  const std::string& path() const { return path_; }  // of the file or the index

  // Throws bad_input unless the files hold exactly these tensors, as floating-point numbers. The error names what is missing, unexpected,
  // of another shape or of another kind, at most ten of each. Only names and shapes are read: `wanted` may be on the meta device.
  void check(const mesh::NamedTensors& wanted, const Aliases& aliases = {}) const;
  // Checks, then copies into these by name, to their device and dtype (bf16, fp16, fp32 and fp64 are converted). A tensor with a number
  // that is not finite is refused as damaged.
  void load_into(const mesh::NamedTensors& into, const Aliases& aliases = {}) const;
  // Checks, then calls `take` for each wanted tensor in order, with its index and a view of it in the file, in the file's dtype. Only what
  // `take` reads of it is read.
  void visit(const mesh::NamedTensors& wanted, const std::function<void(size_t, const at::Tensor&)>& take,
             const Aliases& aliases = {}) const;

 private:
  void add(Safetensors file);
  // Whether a wanted tensor is here as the parts of a stack, and the tensor put together from them, in their dtype.
  bool is_stacked(const std::string& wanted, const Aliases& aliases) const;
  at::Tensor view(const std::string& wanted, const Aliases& aliases) const;
  // Of the parts of a stack: adds names to `used`, and to the others what is wrong.
  void check_stack(const mesh::NamedTensor& wanted, const std::vector<std::vector<std::string>>& parts, std::set<std::string>& used,
                   std::vector<std::string>& missing, std::vector<std::string>& unlike) const;
  // The name of a wanted tensor in these files; if it is in none, the wanted name itself.
  std::string found_name(const std::string& wanted, const Aliases& aliases) const;

  std::string path_;
  std::vector<Safetensors> files_;
  std::map<std::string, std::pair<size_t, const TensorEntry*>> entries_;
};

}  // namespace cairn::snapshot
