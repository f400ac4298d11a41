#include "snapshot/weight_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/terminal.h"
#include "kernels/aten.h"
#include "snapshot/manifest.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kIndexBytesMax = 32 << 20;
constexpr base::JsonLimits kIndexLimits{.depth = 8, .tree_bytes = 128 << 20, .string_bytes = 1 << 16};
constexpr size_t kNamesListed = 10;
constexpr size_t kNameShown = 100;
constexpr size_t kShardsMax = 10'000;

// Which tensor lies in which shard.
std::map<std::string, std::string> read_index(const std::string& path) {
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kIndexBytesMax), kIndexLimits);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  if (!parsed.value.is_object()) base::fail_corrupt(path, "not a JSON object");
  const auto map = parsed.value.find("weight_map");
  if (map == parsed.value.end() || !map->is_object()) base::fail_corrupt(path, "no weight_map that can be read");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) base::fail_corrupt(path, fmt::format("weight_map of {}: not a file name", base::shown(base::Json(tensor))));
    const auto name = file.get<std::string>();
    if (!is_file_name(name) || name.find('/') != std::string::npos || !name.ends_with(".safetensors"))
      base::fail_corrupt(path, fmt::format("weight_map names {}: only safetensors files beside the index are read", base::shown(file)));
    shards.emplace(tensor, name);
  }
  if (shards.empty()) base::fail_corrupt(path, "its weight_map is empty");
  return shards;
}

// "; missing: a, b and 3 more", or nothing.
std::string ten_of(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return {};
  const size_t shown = std::min(items.size(), kNamesListed);
  const std::string more = items.size() > shown ? fmt::format(" and {} more", items.size() - shown) : "";
  return fmt::format("; {}: {}{}", title, fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), ", "), more);
}

bool is_ignored(const std::string& name, const Aliases& aliases) {
  const auto ends = [&](const std::string& ending) { return name.ends_with(ending); };
  return std::any_of(aliases.ignored_endings.begin(), aliases.ignored_endings.end(), ends) ||
         std::find(aliases.ignored.begin(), aliases.ignored.end(), name) != aliases.ignored.end();
}

}  // namespace

WeightFiles WeightFiles::open(const std::string& folder, const std::string& one, const std::string& index) {
  WeightFiles all;
  const fs::path single = fs::path(folder) / one, list = fs::path(folder) / index;
  if (base::path_exists(single)) {
    all.path_ = single;
    all.add(Safetensors(single.string()));
    return all;
  }
  if (!base::path_exists(list)) {
    const bool pickled = base::path_exists(fs::path(folder) / "pytorch_model.bin");
    base::fail_input(
        "{}: no {} and no {} there{}", folder, one, index,
        pickled ? "; pytorch_model.bin is a pickle, which can run code and is never read: save the model with safetensors" : "");
  }
  all.path_ = list;
  const std::map<std::string, std::string> shards = read_index(list);
  std::set<std::string> files;
  for (const auto& [tensor, file] : shards) files.insert(file);
  if (files.size() > kShardsMax) base::fail_corrupt(list, fmt::format("{} shards, at most {} are read", files.size(), kShardsMax));
  for (const std::string& file : files) {
    try {
      all.add(Safetensors((fs::path(folder) / file).string()));
    } catch (Error& error) {
      throw error.with(fmt::format("named in {}", list.string()));
    }
  }
  for (const auto& [tensor, file] : shards) {
    const auto found = all.entries_.find(tensor);
    if (found == all.entries_.end() || fs::path(all.files_[found->second.first].path()).filename() != file)
      base::fail_corrupt(list, fmt::format("tensor {} is not in {}, where the index says it is", base::shown(base::Json(tensor)), file));
  }
  return all;
}

void WeightFiles::add(Safetensors file) {
  files_.push_back(std::move(file));
  for (const TensorEntry& entry : files_.back().entries())
    if (const auto [at, fresh] = entries_.emplace(entry.name, std::pair(files_.size() - 1, &entry)); !fresh)
      base::fail_corrupt(files_.back().path(), fmt::format("tensor {} is also in {}", base::shown(base::Json(entry.name)),
                                                           fs::path(files_[at->second.first].path()).filename().string()));
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : entries_) names.push_back(name);
  return names;
}

std::string WeightFiles::found_name(const std::string& wanted, const Aliases& aliases) const {
  const auto others = aliases.others.find(wanted);
  if (has(wanted) || others == aliases.others.end()) return wanted;
  for (const std::string& other : others->second)
    if (has(other)) return other;
  return wanted;
}

bool WeightFiles::is_stacked(const std::string& wanted, const Aliases& aliases) const {
  const auto stack = aliases.stacks.find(wanted);
  return stack != aliases.stacks.end() && !has(found_name(wanted, aliases)) && has(stack->second.front().front());
}

at::Tensor WeightFiles::view(const std::string& wanted, const Aliases& aliases) const {
  if (!is_stacked(wanted, aliases)) return view(found_name(wanted, aliases));
  std::vector<at::Tensor> all;
  for (const std::vector<std::string>& rows : aliases.stacks.at(wanted)) {
    std::vector<at::Tensor> matrices;
    for (const std::string& name : rows) matrices.push_back(view(name));
    all.push_back(at::cat(matrices));
    check_finite(all.back(), path_, rows.front());
  }
  return at::stack(all);
}

at::Tensor WeightFiles::find(const std::string& wanted, const Aliases& aliases) const {
  return is_stacked(wanted, aliases) || has(found_name(wanted, aliases)) ? view(wanted, aliases) : at::Tensor();
}

void WeightFiles::check_stack(const mesh::NamedTensor& wanted, const std::vector<std::vector<std::string>>& parts,
                              std::set<std::string>& used, std::vector<std::string>& missing, std::vector<std::string>& unlike) const {
  for (const std::vector<std::string>& rows : parts)
    for (const std::string& name : rows) {
      if (!has(name)) {
        missing.push_back(name);
        continue;
      }
      used.insert(name);
      const std::vector<int64_t> expected{wanted.tensor.size(1) / static_cast<int64_t>(rows.size()), wanted.tensor.size(2)};
      if (entry(name).shape != expected)
        unlike.push_back(fmt::format("{} is [{}] there, [{}] here", name, fmt::join(entry(name).shape, ", "), fmt::join(expected, ", ")));
      else if (!c10::isFloatingType(scalar_type(entry(name).dtype)))
        unlike.push_back(fmt::format("{} is {} there, floating-point here", name, word_of(entry(name).dtype)));
    }
}

void WeightFiles::check(const mesh::NamedTensors& wanted, const Aliases& aliases) const {
  std::set<std::string> used;
  std::vector<std::string> missing, unlike, unexpected;
  for (const auto& [name_here, tensor] : wanted) {
    if (is_stacked(name_here, aliases)) {
      check_stack({name_here, tensor}, aliases.stacks.at(name_here), used, missing, unlike);
      continue;
    }
    const std::string name = found_name(name_here, aliases);
    if (!has(name)) {
      missing.push_back(name_here);
      continue;
    }
    used.insert(name);
    const TensorEntry& found = entry(name);
    if (found.shape != tensor.sizes())
      unlike.push_back(fmt::format("{} is [{}] there, [{}] here", name, fmt::join(found.shape, ", "), fmt::join(tensor.sizes(), ", ")));
    else if (!c10::isFloatingType(scalar_type(found.dtype)))
      unlike.push_back(fmt::format("{} is {} there, floating-point here", name, word_of(found.dtype)));
  }
  for (const auto& [name, place] : entries_)
    if (!used.contains(name) && !is_ignored(name, aliases))
      unexpected.push_back(base::printable(std::string_view(name).substr(0, kNameShown)));
  if (const std::string trouble = ten_of("missing", missing) + ten_of("unexpected", unexpected) + ten_of("different", unlike);
      !trouble.empty())
    base::fail_input("{}: its tensors are not those of the model{}", path_, trouble);
}

void WeightFiles::load_into(const mesh::NamedTensors& into, const Aliases& aliases) const {
  check(into, aliases);
  const at::NoGradGuard no_grad;
  for (const auto& [wanted, tensor] : into) {
    tensor.copy_(view(wanted, aliases));
    if (is_stacked(wanted, aliases)) continue;  // checked part by part
    const std::string name = found_name(wanted, aliases);
    check_finite(tensor, files_[entries_.at(name).first].path(), name);
  }
}

void WeightFiles::visit(const mesh::NamedTensors& wanted, const std::function<void(size_t, const at::Tensor&)>& take,
                        const Aliases& aliases) const {
  check(wanted, aliases);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < wanted.size(); ++i) take(i, view(wanted[i].name, aliases));
}

void check_finite(const at::Tensor& tensor, const std::string& path, const std::string& name) {
  // A sum costs no memory. Only where it is not finite, which large numbers can do too, is each element asked.
  if (std::isfinite(tensor.sum().item<double>()) || at::isfinite(tensor).all().item<bool>()) return;
  base::fail_corrupt(path, fmt::format("tensor {} holds numbers that are not finite (NaN or infinity)", name));
}

}  // namespace cairn::snapshot
