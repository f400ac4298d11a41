#include "snapshot/spectral.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSpectralBytesMax = 64 << 20;

at::Tensor stacked_vectors(const std::vector<at::Tensor>& parts) { return (parts.size() == 1 ? parts[0] : at::cat(parts)).to(at::kFloat); }

std::vector<SpectralName> parse_names(const base::Json& json, const std::string& path) {
  if (!json.is_object() || !json.contains("weights") || !json["weights"].is_array())
    base::fail_corrupt(path, "not a list of spectral weights");
  std::vector<SpectralName> names;
  for (const base::Json& one : json["weights"]) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string() || !one.contains("fan_in_fan_out") ||
        !one["fan_in_fan_out"].is_boolean())
      base::fail_corrupt(path, fmt::format("weights holds {}, which is no weight", base::shown(one)));
    names.push_back({one["name"].get<std::string>(), one["fan_in_fan_out"].get<bool>()});
  }
  return names;
}

}  // namespace

std::string format_spectral(const std::vector<SpectralName>& weights) {
  base::OrderedJson json;
  json["weights"] = base::OrderedJson::array();
  for (const SpectralName& one : weights) {
    base::OrderedJson entry;
    entry["name"] = one.name;
    entry["fan_in_fan_out"] = one.fan_in_fan_out;
    json["weights"].push_back(std::move(entry));
  }
  return base::pretty(json) + "\n";
}

at::Tensor SpectralWeightFile::dense(double dropped_energy) const {
  const at::NoGradGuard no_grad;
  at::Tensor kept = s.to(at::kFloat);
  if (dropped_energy > 0) {
    const auto [sorted, order] = kept.sort();  // ascending
    const at::Tensor share = sorted.to(at::kDouble).square().cumsum(0);
    const double all = share[-1].item<double>();
    kept = kept.clone();
    for (int64_t i = 0; i < kept.numel() && share[i].item<double>() <= dropped_energy * all; ++i) kept[order[i].item<int64_t>()].fill_(0);
  }
  const at::Tensor product = at::mm((stacked_vectors(u) * kept.unsqueeze(1)).t(), stacked_vectors(v));
  return fan_in_fan_out ? product.t().contiguous() : product;
}

std::vector<std::string> SpectralState::names() const {
  std::vector<std::string> all;
  for (const SpectralWeightFile& one : weights) all.push_back(one.name);
  return all;
}

mesh::NamedTensors SpectralState::merge_into(const mesh::NamedTensors& parameters) const {
  mesh::NamedTensors others;
  for (const mesh::NamedTensor& one : parameters) {
    const auto found = std::find_if(weights.begin(), weights.end(), [&](const auto& weight) { return weight.name == one.name; });
    if (found == weights.end()) {
      others.push_back(one);
      continue;
    }
    const at::Tensor dense = found->dense();
    if (dense.sizes() != one.tensor.sizes())
      base::fail_input("{}: its factors are of another shape than the model's weight: they do not belong to this config.json", one.name);
    one.tensor.copy_(dense);
  }
  return others;
}

std::optional<SpectralState> read_spectral(const std::string& folder) {
  const fs::path path = fs::path(folder) / kSpectralFile;
  if (!base::path_exists(path)) return std::nullopt;
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kSpectralBytesMax), 8);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  const std::string forms = fs::path(folder) / "training" / "forms.safetensors";
  const Safetensors file(forms);
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.entries()) entries[entry.name] = &entry;
  SpectralState state;
  for (const SpectralName& one : parse_names(parsed.value, path)) {
    SpectralWeightFile& weight = state.weights.emplace_back();
    weight.name = one.name;
    weight.fan_in_fan_out = one.fan_in_fan_out;
    const std::string base = one.name.substr(0, one.name.rfind('.') + 1) + "spectral_";
    const auto tensor = [&](const std::string& part, bool optional, int64_t dims) -> at::Tensor {
      const auto found = entries.find(base + part);
      if (found == entries.end() && optional) return {};
      if (found == entries.end()) base::fail_corrupt(forms, fmt::format("{} is missing", base + part));
      const at::Tensor view = file.view(*found->second);
      if (view.dim() != dims || !view.is_floating_point()) base::fail_corrupt(forms, fmt::format("{} is no part of a weight", base + part));
      return view;
    };
    weight.s = tensor("s", false, 1);
    for (auto [side, into] : {std::pair{"u", &weight.u}, std::pair{"v", &weight.v}}) {
      int64_t rows = 0;
      for (const bool frozen : {false, true})
        if (const at::Tensor part = tensor(std::string(side) + (frozen ? "_frozen" : ""), frozen, 2); part.defined()) {
          if (!into->empty() && into->front().size(1) != part.size(1))
            base::fail_corrupt(forms, fmt::format("the vectors of {} differ in length", one.name));
          into->push_back(part);
          rows += part.size(0);
        }
      if (rows != weight.s.numel())
        base::fail_corrupt(forms, fmt::format("{} has {} vectors for {} values", one.name, rows, weight.s.numel()));
    }
  }
  return state;
}

}  // namespace cairn::snapshot
