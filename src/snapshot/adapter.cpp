#include "snapshot/adapter.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "snapshot/adapter_modules.h"
#include "snapshot/adapter_pools.h"
#include "snapshot/pretrained.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kAdapterConfigBytesMax = 1'000'000;
constexpr const char* kPrefix = "base_model.model.";
// Beside what `peft` reads: pools as they are, to continue from.
constexpr const char* kPoolsConfig = "pools_config.json";
constexpr const char* kPools = "pools.safetensors";

model::AdapterShape parse_lora(const base::Json& json, const std::string& path) {
  const auto given = [&](const char* key) { return json.contains(key) && !json[key].is_null(); };
  if (!given("peft_type") || json["peft_type"] != "LORA")
    base::fail_input("{}: peft_type is {}; Cairn reads LORA", path, given("peft_type") ? base::shown(json["peft_type"]) : "missing");
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"})
    if (given(key) && json[key] != false) base::fail_input("{}: {} = {}: only plain LoRA is read", path, key, base::shown(json[key]));
  for (const char* key :
       {"modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "target_parameters", "exclude_modules"})
    if (given(key) && !json[key].empty())
      base::fail_input("{}: {} = {}: Cairn reads adapters of one rank on whole models", path, key, base::shown(json[key]));
  if (given("bias") && json["bias"] != "none") base::fail_input("{}: bias = {}: only \"none\" is read", path, base::shown(json["bias"]));
  model::AdapterShape shape;
  if (!given("r") || !json["r"].is_number_integer() || json["r"].get<int64_t>() < 1 || json["r"].get<int64_t>() > 65536)
    base::fail_corrupt(path,
                       fmt::format("r = {}: must be a whole number from 1 to 65536", given("r") ? base::shown(json["r"]) : "nothing"));
  shape.rank = json["r"].get<int64_t>();
  if (!given("lora_alpha") || !json["lora_alpha"].is_number()) base::fail_corrupt(path, "lora_alpha is missing or no number");
  if (!(json["lora_alpha"].get<double>() > 0)) base::fail_corrupt(path, "lora_alpha must be above 0");
  shape.alpha = json["lora_alpha"].get<double>();
  shape.by_root = given("use_rslora") && json["use_rslora"] == true;
  shape.targets.clear();
  if (given("target_modules") && json["target_modules"].is_array()) {
    for (const base::Json& one : json["target_modules"]) {
      if (!one.is_string()) base::fail_corrupt(path, fmt::format("target_modules holds {}, which is no name", base::shown(one)));
      shape.targets.push_back(one.get<std::string>());
    }
  } else if (given("target_modules")) {
    base::fail_input("{}: target_modules = {}: Cairn reads a list of names", path, base::shown(json["target_modules"]));
  }
  return shape;
}

// One matrix of an adapter in fp32, of the right width and finite. `name` as it is in the file.
at::Tensor checked_matrix(const at::Tensor& tensor, const std::string& name, const std::string& path, int64_t rank) {
  const bool first = name.ends_with(".lora_A.weight");
  if (!c10::isFloatingType(tensor.scalar_type())) base::fail_corrupt(path, fmt::format("tensor {} holds no floating-point numbers", name));
  if (tensor.dim() != 2 || tensor.size(first ? 0 : 1) != rank)
    base::fail_corrupt(path,
                       fmt::format("tensor {} is [{}], and adapter_config.json says r = {}", name, fmt::join(tensor.sizes(), ", "), rank));
  at::Tensor matrix = tensor.to(at::kFloat);
  check_finite(matrix, path, name);
  return matrix;
}

// A tensor of an adapter: a pool may have any number of rows, which low_rank_tensors checks.
// A tensor of a bottleneck adapter, or of one in modules; whoever loads it knows its shape.
at::Tensor checked_part(const at::Tensor& tensor, const std::string& name, const std::string& path) {
  if (!c10::isFloatingType(tensor.scalar_type())) base::fail_corrupt(path, fmt::format("tensor {} holds no floating-point numbers", name));
  if (tensor.dim() < 1 || tensor.dim() > 2 || tensor.numel() == 0)
    base::fail_corrupt(path, fmt::format("tensor {} is [{}], which no part of an adapter is", name, fmt::join(tensor.sizes(), ", ")));
  at::Tensor part = tensor.to(at::kFloat);
  check_finite(part, path, name);
  return part;
}

at::Tensor checked(const at::Tensor& tensor, const std::string& name, const std::string& path, const Adapter& adapter) {
  if (adapter.shape.kind == model::AdapterKind::bottleneck || adapter.shape.kind == model::AdapterKind::mosa)
    return checked_part(tensor, name, path);
  if (adapter.shape.kind != model::AdapterKind::mos) return checked_matrix(tensor, name, path, adapter.shape.rank);
  if (!c10::isFloatingType(tensor.scalar_type()) || tensor.dim() != 2) base::fail_corrupt(path, fmt::format("tensor {} is no pool", name));
  at::Tensor pool = tensor.to(at::kFloat);
  check_finite(pool, path, name);
  return pool;
}

std::string layer_of(const std::string& name) { return name.substr(0, name.find(".lora_")); }

const at::Tensor* find(const mesh::NamedTensors& tensors, const std::string& name) {
  for (const mesh::NamedTensor& one : tensors)
    if (one.name == name) return &one.tensor;
  return nullptr;
}

Adapter read_config(const std::string& folder, const char* file = "adapter_config.json") {
  const std::string path = fs::path(folder) / file;
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kAdapterConfigBytesMax), 16);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  if (!parsed.value.is_object()) base::fail_corrupt(path, "not a JSON object");
  if (parsed.value.contains("adapter_type")) return {.shape = parse_bottleneck(parsed.value, path), .tensors = {}, .path = folder};
  Adapter adapter{.shape = parse_lora(parsed.value, path), .tensors = {}, .path = folder};
  if (const auto found = parsed.value.find("lora_dropout"); found != parsed.value.end() && !found->is_null()) {
    if (!found->is_number()) base::fail_corrupt(path, fmt::format("lora_dropout = {}: must be a number", base::shown(*found)));
    adapter.shape.dropout = found->get<double>();
    if (!(adapter.shape.dropout >= 0 && adapter.shape.dropout < 1))
      base::fail_corrupt(path, fmt::format("lora_dropout = {}: must be from 0 to below 1", base::shown(*found)));
  }
  if (const auto pools = parsed.value.find("mos"); pools != parsed.value.end()) read_pools_json(*pools, adapter, path);
  if (const auto modules = parsed.value.find("mosa"); modules != parsed.value.end()) {
    read_modules_json(*modules, adapter.shape, path);
    adapter.shape.style = model::AdapterStyle::lora;
  }
  return adapter;
}

Adapter read_pools(const std::string& folder) {
  Adapter adapter = read_config(folder, kPoolsConfig);
  if (adapter.shape.kind != model::AdapterKind::mos) base::fail_corrupt(fs::path(folder) / kPoolsConfig, "it has no entry \"mos\"");
  const Safetensors file((fs::path(folder) / kPools).string());
  for (const TensorEntry& entry : file.entries())
    adapter.tensors.push_back({entry.name, checked(file.view(entry), entry.name, file.path(), adapter)});
  return adapter;
}

}  // namespace

Adapter read_snapshot_adapter(const std::string& training) {
  Adapter adapter = read_config(training);
  const Safetensors file((fs::path(training) / "adapter.safetensors").string());
  for (const TensorEntry& entry : file.entries())
    adapter.tensors.push_back({entry.name, checked(file.view(entry), entry.name, file.path(), adapter)});
  return adapter;
}

Adapter read_adapter(const std::string& folder) {
  if (base::path_exists(fs::path(folder) / kPoolsConfig)) return read_pools(folder);
  Adapter adapter = read_config(folder);
  const WeightFiles files = WeightFiles::open(folder, "adapter_model.safetensors", "adapter_model.safetensors.index.json");
  for (const std::string& name : files.names()) {
    if (adapter.shape.on_branches()) {
      adapter.tensors.push_back({name, checked_part(files.view(name), name, files.path())});
      continue;
    }
    if (!name.starts_with(kPrefix) || (!name.ends_with(".lora_A.weight") && !name.ends_with(".lora_B.weight")))
      base::fail_input("{}: tensor \"{}\" is none of a LoRA adapter", files.path(), name.substr(0, 100));
    adapter.tensors.push_back(
        {name.substr(std::string(kPrefix).size()), checked_matrix(files.view(name), name, files.path(), adapter.shape.rank)});
  }
  if (adapter.tensors.empty()) base::fail_corrupt(files.path(), "it holds no tensors");
  return adapter;
}

std::string format_adapter_config(const model::AdapterShape& adapter, const model::DecoderShape& shape, const std::string& base_model) {
  if (adapter.on_branches()) return format_bottleneck_config(adapter, base_model);
  base::OrderedJson json;
  json["base_model_name_or_path"] = base_model;
  json["bias"] = "none";
  json["fan_in_fan_out"] = model::family(shape.family).fan_in_fan_out;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["lora_alpha"] = adapter.alpha;
  json["lora_dropout"] = adapter.dropout;
  json["modules_to_save"] = nullptr;
  json["peft_type"] = "LORA";
  json["r"] = adapter.rank;
  json["target_modules"] = adapter.targets;
  json["task_type"] = "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = adapter.by_root;
  if (adapter.kind == model::AdapterKind::mos) json["mos"] = pools_json(adapter, shape.layers);
  if (adapter.kind == model::AdapterKind::mosa) json["mosa"] = modules_json(adapter);
  return base::pretty(json) + "\n";
}

void write_adapter(const std::string& folder, const Adapter& trained, const model::DecoderShape& shape, const std::string& base_model,
                   const base::Disk& disk) {
  const Adapter adapter = merge_modules(trained);
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error))
    base::fail_input("{}: there is something already; choose another directory to write to", folder);
  base::make_folder(folder);
  mesh::NamedTensors named;
  if (adapter.shape.on_branches()) {
    write_safetensors((fs::path(folder) / "adapter_model.safetensors").string(), adapter.tensors, disk);
    base::write_atomically(fs::path(folder) / "adapter_config.json", format_bottleneck_config(adapter.shape, base_model), disk);
    return;
  }
  for (const auto& [name, tensor] : low_rank_tensors(adapter, shape)) named.push_back({kPrefix + name, tensor});
  write_safetensors((fs::path(folder) / "adapter_model.safetensors").string(), named, disk);
  model::AdapterShape plain = adapter.shape;
  plain.kind = model::AdapterKind::lora;
  base::write_atomically(fs::path(folder) / "adapter_config.json", format_adapter_config(plain, shape, base_model), disk);
  if (adapter.shape.kind != model::AdapterKind::mos) return;
  write_safetensors((fs::path(folder) / kPools).string(), adapter.tensors, disk);
  base::write_atomically(fs::path(folder) / kPoolsConfig, format_adapter_config(adapter.shape, shape, base_model), disk);
}

Adapter with_head(const Adapter& adapter, const Pretrained& trained) {
  Adapter whole = adapter;
  if (trained.shape.pictures.channels == 0 || !adapter.shape.on_branches()) return whole;
  for (const char* part : {".weight", ".bias"}) {
    const std::string name = model::family(trained.shape.family).names.head + part;
    if (const at::Tensor found = trained.view(name); found.defined()) whole.tensors.push_back({name, found.to(at::kFloat)});
  }
  return whole;
}

namespace {

std::string of_adapter(const Adapter& adapter) { return adapter.path.empty() ? "the adapter" : adapter.path; }

[[noreturn]] void fail_unmerged(const Adapter& adapter) {
  base::fail_input(
      "{}: adapters of style {} are no part of any weight and cannot be merged. Export them with --adapter, and continue or evaluate with "
      "model.adapter.from.",
      of_adapter(adapter), base::enum_name(model::kAdapterStyleNames, adapter.shape.style));
}

// Calls `use` with the weight, a and b of each layer that has an adapter; `weight` finds a parameter by name, or null.
void for_each_layer(const Adapter& adapter, const model::DecoderShape& shape,
                    const std::function<const at::Tensor*(const std::string&)>& weight,
                    const std::function<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>& use) {
  const model::Family& family = model::family(shape.family);
  const std::string of = of_adapter(adapter);
  if (adapter.shape.on_branches()) fail_unmerged(adapter);
  const mesh::NamedTensors tensors = low_rank_tensors(merge_modules(adapter), shape);
  for (const auto& [name, a] : tensors) {
    const std::string layer = layer_of(name);
    if (!find(tensors, layer + ".lora_A.weight")) base::fail_input("{}: the layer {} has no lora_A", of, layer);
    if (!name.ends_with(".lora_A.weight")) continue;
    const at::Tensor *found = weight(layer + ".weight"), *b = find(tensors, layer + ".lora_B.weight");
    if (!found) base::fail_input("{}: for a layer {} that the model does not have: it is an adapter of another model", of, layer);
    if (!b) base::fail_input("{}: the layer {} has no lora_B", of, layer);
    const at::Tensor w = family.fan_in_fan_out && layer != family.names.head ? found->t() : *found;  // every head is [out, in]
    if (w.dim() != 2 || a.dim() != 2 || b->dim() != 2 || a.size(1) != w.size(1) || b->size(0) != w.size(0) || a.size(0) != b->size(1))
      base::fail_input("{}: the adapter of {} is [{}] and [{}], which does not fit its weight [{}]", of, layer, fmt::join(a.sizes(), ", "),
                       fmt::join(b->sizes(), ", "), fmt::join(w.sizes(), ", "));
    use(w, a, *b);
  }
}

}  // namespace

void check_adapter(const Adapter& adapter, const model::DecoderShape& shape) {
  const auto decoder = model::make_decoder(shape);
  mesh::NamedTensors nothing;
  for (const model::Parameter& p : decoder->parameters())
    nothing.push_back({p.name, at::empty(p.shape, at::TensorOptions().device(at::kMeta))});
  for_each_layer(
      adapter, shape, [&](const std::string& name) { return find(nothing, name); },
      [](const at::Tensor&, const at::Tensor&, const at::Tensor&) {});
}

void load_unmerged(const Adapter& adapter, mesh::NamedTensors& parameters) {
  const Adapter merged = merge_modules(adapter);
  for (const mesh::NamedTensor& one : merged.tensors) {
    const auto into = std::ranges::find(parameters, one.name, &mesh::NamedTensor::name);
    if (into == parameters.end()) fail_unmerged(adapter);
    if (into->tensor.sizes() != one.tensor.sizes())
      base::fail_input("{}: {} is [{}], and the model's is [{}]: it is an adapter of another model", of_adapter(adapter), one.name,
                       fmt::join(one.tensor.sizes(), ", "), fmt::join(into->tensor.sizes(), ", "));
    into->tensor.copy_(one.tensor);
    parameters.erase(into);
  }
}

void merge_adapter(const mesh::NamedTensors& parameters, const Adapter& adapter, const model::DecoderShape& shape, AdapterMerge merge) {
  const at::NoGradGuard no_grad;
  const double scale = merge == AdapterMerge::add ? adapter.shape.scale() : -adapter.shape.scale();
  for_each_layer(
      adapter, shape, [&](const std::string& name) { return find(parameters, name); },
      [&](const at::Tensor& w, const at::Tensor& a, const at::Tensor& b) { w.add_(at::matmul(b, a), scale); });
}

}  // namespace cairn::snapshot
