// Writing a Hugging Face directory: into a temporary folder, then one rename.
#include <filesystem>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/families/config.h"
#include "model/families/expert_names.h"
#include "snapshot/manifest.h"
#include "snapshot/pretrained.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

// Removed unless it was put in place.
class Aside {
 public:
  explicit Aside(fs::path path) : path_(std::move(path)) { base::make_folder(path_); }
  ~Aside() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  const fs::path& path() const { return path_; }
  void placed() { path_.clear(); }

 private:
  fs::path path_;
};

std::string dtype_word(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "float16";
    default:
      base::fail_input("dtype {}: a model is written as float32, bfloat16 or float16", c10::toString(dtype));
  }
}

// Tensors in files of at most `bytes_max`, in order; one that is larger gets a file of its own.
std::vector<mesh::NamedTensors> shards_of(const mesh::NamedTensors& tensors, int64_t bytes_max) {
  std::vector<mesh::NamedTensors> shards(1);
  int64_t bytes = 0;
  for (const mesh::NamedTensor& one : tensors) {
    const auto size = static_cast<int64_t>(one.tensor.nbytes());
    if (!shards.back().empty() && bytes + size > bytes_max) shards.emplace_back(), bytes = 0;
    shards.back().push_back(one);
    bytes += size;
  }
  return shards;
}

void write_weights(const fs::path& folder, const mesh::NamedTensors& tensors, const ExportOptions& options, const base::Disk& disk) {
  mesh::NamedTensors converted;
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    converted.push_back({name, tensor.to(options.dtype)});
    total += static_cast<int64_t>(converted.back().tensor.nbytes());
  }
  const std::vector<mesh::NamedTensors> shards = shards_of(converted, options.shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / "model.safetensors", converted, disk);
    return;
  }
  base::OrderedJson index;
  index["metadata"]["total_size"] = total;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const mesh::NamedTensor& one : shards[i]) index["weight_map"][one.name] = file;
    write_safetensors(folder / file, shards[i], disk);
  }
  base::write_atomically(folder / "model.safetensors.index.json", base::pretty(index) + "\n", disk);
}

std::string generation_config(const model::SpecialTokens& tokens) {
  base::OrderedJson json;
  json["_from_model_config"] = true;
  if (tokens.bos) json["bos_token_id"] = *tokens.bos;
  if (tokens.eos.size() == 1) json["eos_token_id"] = tokens.eos[0];
  if (tokens.eos.size() > 1) json["eos_token_id"] = tokens.eos;
  if (tokens.pad) json["pad_token_id"] = *tokens.pad;
  return base::pretty(json) + "\n";
}

}  // namespace

namespace {

// Stacked parameters as one tensor per expert, which every program reads; views.
mesh::NamedTensors by_expert(const model::DecoderShape& shape, const mesh::NamedTensors& parameters) {
  std::map<std::string, std::vector<std::vector<std::string>>> stacks;
  for (model::StackedParameter& one : model::stacked_parameters(shape)) stacks.emplace(one.name, std::move(one.parts));
  std::map<std::string, std::string> renamed;
  for (auto& [name, theirs] : model::renamed_routers(shape)) renamed.emplace(name, theirs);
  mesh::NamedTensors all;
  for (const auto& [name, tensor] : parameters) {
    const auto stack = stacks.find(name);
    if (stack == stacks.end()) {
      all.push_back({renamed.contains(name) ? renamed.at(name) : name, tensor});
      continue;
    }
    for (size_t e = 0; e < stack->second.size(); ++e) {
      const std::vector<at::Tensor> matrices = tensor[static_cast<int64_t>(e)].chunk(static_cast<int64_t>(stack->second[e].size()), 0);
      for (size_t i = 0; i < matrices.size(); ++i) all.push_back({stack->second[e][i], matrices[i]});
    }
  }
  return all;
}

}  // namespace

void write_pretrained(const std::string& folder, const model::DecoderShape& shape, const mesh::NamedTensors& parameters,
                      std::map<std::string, std::string> texts, const ExportOptions& options, const base::Disk& disk) {
  texts["config.json"] = model::format_config(shape, dtype_word(options.dtype));
  if (shape.pictures.channels == 0) texts.emplace("generation_config.json", generation_config(shape.tokens));
  write_model_folder(folder, shape.experts.count > 0 ? by_expert(shape, parameters) : parameters, texts, options, disk);
}

void write_model_folder(const std::string& folder, const mesh::NamedTensors& parameters, const std::map<std::string, std::string>& texts,
                        const ExportOptions& options, const base::Disk& disk) {
  const fs::path place = fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  std::error_code error;
  if (fs::exists(place, error) && !fs::is_empty(place, error))
    base::fail_input("{}: there is something already; choose another directory to write to", folder);
  Aside aside(place.parent_path() / fmt::format(".writing-{}-{}", place.filename().string(), ::getpid()));
  write_weights(aside.path(), parameters, options, disk);
  for (const auto& [name, text] : texts) {
    CAIRN_CHECK(is_file_name(name), "a text named {}", name);
    base::write_atomically(aside.path() / name, text, disk);
  }
  fs::remove(place, error);  // empty, or missing
  fs::rename(aside.path(), place, error);
  if (error) throw Error(Error::Kind::disk, fmt::format("{}: cannot be put in place: {}", folder, error.message()));
  aside.placed();
}

}  // namespace cairn::snapshot
