#include "snapshot/masks.h"

#include <filesystem>
#include <map>
#include <span>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/decoder/masked_weight.h"
#include "model/decoder/weight_form.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSparseBytesMax = 64 << 20;

// Empty where there is none.
std::string masks_path(const std::string& folder) {
  for (const fs::path& path : {fs::path(folder) / kMasksFile, fs::path(folder) / "training" / kMasksFile})
    if (base::path_exists(path)) return path;
  return {};
}

std::string weight_of(const std::string& mask, const std::string& path) {
  const std::string suffix = model::kMaskSuffix;
  if (!mask.ends_with(suffix)) base::fail_corrupt(path, fmt::format("tensor {} is no mask: its name must end with {}", mask, suffix));
  return mask.substr(0, mask.size() - suffix.size());
}

}  // namespace

std::vector<std::string> masked_weights(const std::string& folder) {
  const std::string path = masks_path(folder);
  std::vector<std::string> names;
  if (path.empty()) return names;
  const Safetensors file(path);
  for (const TensorEntry& entry : file.entries()) names.push_back(weight_of(entry.name, path));
  return names;
}

mesh::NamedTensors read_masks(const std::string& folder, const model::DecoderShape& shape) {
  const std::string path = masks_path(folder);
  if (path.empty()) return {};
  const auto decoder = model::make_decoder(shape);
  std::map<std::string, const model::Parameter*> weights;
  for (const model::Parameter& one : decoder->parameters())
    if (one.is_hidden_matrix()) weights[one.name] = &one;
  const Safetensors file(path);
  mesh::NamedTensors masks;
  for (const TensorEntry& entry : file.entries()) {
    const auto weight = weights.find(weight_of(entry.name, path));
    if (weight == weights.end()) base::fail_corrupt(path, fmt::format("{}: the model has no such weight", entry.name));
    const std::vector<int64_t>& matrix = weight->second->shape;
    if (entry.dtype != SafetensorsDtype::u8 || entry.shape != model::mask_shape(matrix))
      base::fail_corrupt(path,
                         fmt::format("{} is {} [{}]: the mask of a weight [{}] is U8 [{}]", entry.name, word_of(entry.dtype),
                                     fmt::join(entry.shape, ", "), fmt::join(matrix, ", "), fmt::join(model::mask_shape(matrix), ", ")));
    const at::Tensor bits = file.view(entry).clone(), full = model::full_mask(matrix, at::TensorOptions());
    if (!at::equal(bits.bitwise_or(full), full)) base::fail_corrupt(path, fmt::format("{} has bits behind the last column", entry.name));
    masks.push_back({entry.name, bits});
  }
  return masks;
}

void write_masks(const std::string& folder, const mesh::NamedTensors& masks, const base::Disk& disk) {
  write_safetensors(fs::path(folder) / kMasksFile, masks, disk);
}

uint64_t masks_checksum(const mesh::NamedTensors& masks) {
  if (masks.empty()) return 0;
  std::map<std::string, at::Tensor> sorted;
  for (const mesh::NamedTensor& one : masks) sorted[one.name] = one.tensor.cpu().contiguous();
  base::Checksum sum;
  for (const auto& [name, bits] : sorted) {
    sum.add(std::as_bytes(std::span(name)));
    sum.add(std::span(static_cast<const std::byte*>(bits.const_data_ptr()), bits.nbytes()));
  }
  return sum.value();
}

void load_masks(const mesh::NamedTensors& into, const mesh::NamedTensors& masks) {
  std::map<std::string, at::Tensor> given;
  for (const mesh::NamedTensor& one : masks) given[one.name] = one.tensor;
  for (const mesh::NamedTensor& one : into) {
    if (!given.contains(one.name)) base::fail_input("{}: the model has no such mask", one.name);
    one.tensor.copy_(given[one.name]);
  }
}

std::string format_sparse(const model::SparseOptions& options) {
  base::OrderedJson json;
  json["form"] = base::enum_name(model::kSparseFormNames, options.form);
  json["rank"] = options.rank;
  json["alpha"] = options.alpha;
  json["keep_zeros"] = options.keep_zeros;
  json["weights"] = options.weights;
  return base::pretty(json) + "\n";
}

namespace {

model::SparseOptions parse_sparse(const base::Json& json, const std::string& path) {
  const auto is = [&](const char* key, auto fits) { return json.contains(key) && fits(json[key]); };
  const auto text = [](const base::Json& value) { return value.is_string(); };
  if (!json.is_object() || !is("form", text) ||
      !is("rank", [](const base::Json& v) { return v.is_number_integer() && v >= 1 && v <= 65536; }) ||
      !is("alpha", [](const base::Json& v) { return v.is_number() && v > 0; }) ||
      !is("keep_zeros", [](const base::Json& v) { return v.is_boolean(); }) ||
      !is("weights", [](const base::Json& v) { return v.is_array(); }))
    base::fail_corrupt(path, "not the forms of pruned weights");
  model::SparseOptions options{.form = model::SparseForm::dense};
  for (const auto& one : model::kSparseFormNames)
    if (json["form"] == one.name) options.form = one.value;
  if (options.form == model::SparseForm::dense) base::fail_corrupt(path, fmt::format("form = {}: unknown", base::shown(json["form"])));
  options.rank = json["rank"].get<int64_t>();
  options.alpha = json["alpha"].get<double>();
  options.keep_zeros = json["keep_zeros"].get<bool>();
  for (const base::Json& one : json["weights"]) {
    if (!text(one)) base::fail_corrupt(path, fmt::format("weights holds {}, which is no name", base::shown(one)));
    options.weights.push_back(one.get<std::string>());
  }
  return options;
}

}  // namespace

std::optional<SparseState> read_sparse(const std::string& folder) {
  const fs::path path = fs::path(folder) / kSparseFile;
  if (!base::path_exists(path)) return std::nullopt;
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kSparseBytesMax), 8);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  SparseState sparse{.options = parse_sparse(parsed.value, path), .factors = {}};
  const fs::path factors = fs::path(folder) / "training" / "forms.safetensors";
  if (!base::path_exists(factors)) return sparse;
  const Safetensors file(factors.string());
  for (const TensorEntry& entry : file.entries()) sparse.factors.push_back({entry.name, file.view(entry)});
  return sparse;
}

void merge_sparse(const mesh::NamedTensors& parameters, const SparseState& sparse, const mesh::NamedTensors& masks,
                  const model::DecoderShape& shape) {
  const at::NoGradGuard no_grad;
  const auto model = model::make_decoder(shape, {}, model::make_sparse_rule(sparse.options));
  model::Buffers buffers;
  for (const model::WeightForm* form : model::weight_forms(*model)) form->add_buffers(buffers, at::TensorOptions());
  mesh::NamedTensors into;
  for (const auto& [name, bits] : buffers) into.push_back({name, bits});
  load_masks(into, masks);
  mesh::NamedTensors whole = parameters;
  whole.insert(whole.end(), sparse.factors.begin(), sparse.factors.end());
  std::map<std::string, at::Tensor> stored;
  for (const mesh::NamedTensor& one : parameters) stored[one.name] = one.tensor;
  for (auto& [name, bits] : buffers)  // where the parameters are
    if (!parameters.empty()) bits = bits.to(parameters.front().tensor.device());
  for (mesh::NamedTensor& one : whole)
    if (!parameters.empty()) one.tensor = one.tensor.to(parameters.front().tensor.device());
  const model::NamedWeights weights(*model, whole);
  const mesh::Axes axes;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = axes};
  for (const model::WeightForm* form : model::weight_forms(*model)) stored.at(form->dense_parameter().name).copy_(form->dense(call));
}

}  // namespace cairn::snapshot
