#include "snapshot/adapter_modules.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/decoder/adapter_matrix.h"

namespace cairn::snapshot {
namespace {

constexpr const char* kModules = ".modules.";
constexpr const char* kType = "bottleneck";
constexpr int64_t kMost = 65536;

const base::Json& entry_of(const base::Json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end()) base::fail_corrupt(path, fmt::format("{} is missing", key));
  return *found;
}

int64_t number_at(const base::Json& json, const char* key, int64_t low, const std::string& path) {
  const base::Json& found = entry_of(json, key, path);
  if (!found.is_number_integer() || found.get<int64_t>() < low)
    base::fail_corrupt(path, fmt::format("{} = {}: must be a whole number from {} on", key, base::shown(found), low));
  return found.get<int64_t>();
}

double measured(const base::Json& json, const char* key, const std::string& path) {
  const base::Json& found = entry_of(json, key, path);
  if (!found.is_number() || !(found.get<double>() >= 0))
    base::fail_corrupt(path, fmt::format("{} = {}: must be a number from 0 on", key, base::shown(found)));
  return found.get<double>();
}

template <typename E>
E word_of(const base::Json& json, const char* key, base::EnumNames<E> names, const std::string& path) {
  const base::Json& found = entry_of(json, key, path);
  const std::string word = found.is_string() ? found.get<std::string>() : "";
  for (const base::EnumName<E>& one : names)
    if (word == one.name) return one.value;
  base::fail_corrupt(path, fmt::format("{} = {}: is none of the words that Cairn knows", key, base::shown(found)));
}

// The modules of one matrix and of its bias, by number.
struct Split {
  std::map<int64_t, at::Tensor> weights, biases;
};

// "x.modules.3.weight" -> x, 3, "weight".
struct ModuleName {
  std::string of;
  int64_t module = 0;
  std::string what;
};
ModuleName module_name(const std::string& name, const std::string& where) {
  const size_t at = name.rfind(kModules), dot = name.rfind('.');
  const std::string number = name.substr(at + std::string(kModules).size(), dot - at - std::string(kModules).size());
  if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos)
    base::fail_input("{}: \"{}\" is no module of an adapter", where, name.substr(0, 100));
  return {name.substr(0, at), std::stoll(number), name.substr(dot + 1)};
}

// The merged matrix [out, in]. The narrow side is the rank.
at::Tensor merged_matrix(const std::string& name, const Split& split, const model::AdapterShape& shape, const std::string& where) {
  int64_t elements = 0;
  for (const auto& [module, tensor] : split.weights) elements += tensor.numel();
  const bool narrows = name.ends_with(".down") || name.ends_with(".lora_A");
  const int64_t wide = elements / shape.rank;
  const model::AdapterMatrix sizes({.name = name,
                                    .out = narrows ? shape.rank : wide,
                                    .in = narrows ? wide : shape.rank,
                                    .modules = shape.modules,
                                    .split = shape.split,
                                    .seed = shape.mask_seed});
  at::Tensor flat = at::zeros({elements}, at::kFloat);
  const std::vector<int64_t> order = sizes.module_order();
  int64_t at = 0;
  for (const auto& [module, tensor] : split.weights) {
    if (wide * shape.rank != elements || tensor.numel() != sizes.module_elements(module))
      base::fail_input("{}: module {} of {} has {} elements, which does not fit {} modules of rank {}", where, module, name, tensor.numel(),
                       shape.modules, shape.rank);
    const at::Tensor places = at::empty({tensor.numel()}, at::kLong);
    std::copy(order.begin() + at, order.begin() + at + tensor.numel(), places.mutable_data_ptr<int64_t>());
    flat.index_copy_(0, places, tensor.reshape({-1}).to(at::kFloat));
    at += tensor.numel();
  }
  return flat.mul_(1.0 / static_cast<double>(shape.modules)).view({narrows ? shape.rank : wide, narrows ? wide : shape.rank});
}

}  // namespace

Adapter merge_modules(const Adapter& adapter) {
  if (adapter.shape.kind != model::AdapterKind::mosa) return adapter;
  const std::string where = adapter.path.empty() ? "the adapter" : adapter.path;
  Adapter merged{.shape = adapter.shape, .tensors = {}, .path = adapter.path};
  merged.shape.kind = adapter.shape.on_branches() ? model::AdapterKind::bottleneck : model::AdapterKind::lora;
  merged.shape.modules = 1, merged.shape.share = {}, merged.shape.split = {}, merged.shape.mask_seed = 0;
  std::map<std::string, Split> splits;
  for (const mesh::NamedTensor& one : adapter.tensors) {
    if (one.name.find(kModules) == std::string::npos) {
      merged.tensors.push_back(one);
      continue;
    }
    const ModuleName name = module_name(one.name, where);
    Split& split = splits[name.of];
    (name.what == "bias" ? split.biases : split.weights)[name.module] = one.tensor;
  }
  for (const auto& [name, split] : splits) {
    for (const auto* part : {&split.weights, &split.biases})
      if (!part->empty() && (std::ssize(*part) != adapter.shape.modules || part->rbegin()->first + 1 != adapter.shape.modules))
        base::fail_input("{}: {} has {} of {} modules", where, name, part->size(), adapter.shape.modules);
    merged.tensors.push_back({name + ".weight", merged_matrix(name, split, adapter.shape, where)});
    if (split.biases.empty()) continue;
    at::Tensor sum = at::zeros_like(split.biases.begin()->second, at::kFloat);
    for (const auto& [module, bias] : split.biases) sum.add_(bias);
    merged.tensors.push_back({name + ".bias", sum.mul_(1.0 / static_cast<double>(adapter.shape.modules))});
  }
  return merged;
}

base::OrderedJson modules_json(const model::AdapterShape& adapter) {
  base::OrderedJson json;
  json["modules"] = adapter.modules;
  json["share"] = base::enum_name(model::kAdapterShareNames, adapter.share);
  json["split"] = base::enum_name(model::kModuleSplitNames, adapter.split);
  json["mask_seed"] = adapter.mask_seed;
  return json;
}

void read_modules_json(const base::Json& json, model::AdapterShape& into, const std::string& path) {
  if (!json.is_object()) base::fail_corrupt(path, "mosa must be an object");
  into.kind = model::AdapterKind::mosa;
  into.modules = number_at(json, "modules", 1, path);
  if (into.modules > kMost) base::fail_corrupt(path, fmt::format("modules = {}: must be at most {}", into.modules, kMost));
  into.share = word_of<model::AdapterShare>(json, "share", model::kAdapterShareNames, path);
  into.split = word_of<model::ModuleSplit>(json, "split", model::kModuleSplitNames, path);
  into.mask_seed = number_at(json, "mask_seed", 0, path);
}

std::string format_bottleneck_config(const model::AdapterShape& adapter, const std::string& base_model) {
  base::OrderedJson json;
  json["adapter_type"] = kType;
  json["base_model_name_or_path"] = base_model;
  json["style"] = base::enum_name(model::kAdapterStyleNames, adapter.style);
  json["rank"] = adapter.rank;
  json["scale"] = adapter.scale();
  json["dropout"] = adapter.dropout;
  if (adapter.kind == model::AdapterKind::mosa) json["mosa"] = modules_json(adapter);
  return base::pretty(json) + "\n";
}

model::AdapterShape parse_bottleneck(const base::Json& json, const std::string& path) {
  const base::Json& type = entry_of(json, "adapter_type", path);
  if (type != kType) base::fail_input("{}: adapter_type = {}; Cairn reads {}", path, base::shown(type), kType);
  model::AdapterShape shape{.kind = model::AdapterKind::bottleneck};
  shape.rank = number_at(json, "rank", 1, path);
  if (shape.rank > kMost) base::fail_corrupt(path, fmt::format("rank = {}: must be at most {}", shape.rank, kMost));
  shape.style = word_of<model::AdapterStyle>(json, "style", model::kAdapterStyleNames, path);
  if (!shape.on_branches()) base::fail_corrupt(path, "style = \"lora\": such an adapter has the files of peft");
  shape.branch_scale = measured(json, "scale", path);
  shape.dropout = measured(json, "dropout", path);
  if (!(shape.dropout < 1)) base::fail_corrupt(path, "dropout must be below 1");
  if (const auto modules = json.find("mosa"); modules != json.end()) read_modules_json(*modules, shape, path);
  return shape;
}

}  // namespace cairn::snapshot
