#include "snapshot/diff.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "kernels/aten.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace {

// Files whose content depends on the layout, the machine and the day.
const std::set<std::string> kLayoutFiles{"training/plan.json", "training/recipe.toml"};

std::string described_entry(const TensorEntry& entry) { return fmt::format("{} [{}]", word_of(entry.dtype), fmt::join(entry.shape, ", ")); }

// The elements whose bits differ.
at::Tensor unlike_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& one) { return one.contiguous().view({-1}).view(at::kByte).view({one.numel(), -1}); };
  return bytes(a).ne(bytes(b)).any(1);
}

void compare_values(const at::Tensor& a, const at::Tensor& b, TensorDifference one, SnapshotDiff& into) {
  ++into.tensors;
  into.elements += a.numel();
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  if (std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0) return;
  const at::Tensor unlike = unlike_bits(left, right);
  one.elements = unlike.sum().item<int64_t>();
  const auto chosen = [&](const at::Tensor& from) { return from.view({-1}).masked_select(unlike).to(at::kDouble); };
  one.largest = (chosen(left) - chosen(right)).abs().max().item<double>();
  into.tensors_differ.push_back(std::move(one));
}

void compare_section(const OpenSnapshot& a, const OpenSnapshot& b, const std::string& section, SnapshotDiff& into) {
  const auto entries = [&](const OpenSnapshot& of) {
    std::map<std::string, TensorEntry> named;
    if (of.has_section(section))
      for (TensorEntry& entry : of.entries(section)) named.emplace(entry.name, entry);
    return named;
  };
  const std::map<std::string, TensorEntry> left = entries(a), right = entries(b);
  for (const auto& [name, entry] : left) {
    TensorDifference one{.section = section, .name = name};
    const auto other = right.find(name);
    if (other == right.end()) {
      one.what = "only in " + a.path();
    } else if (entry.dtype != other->second.dtype || entry.shape != other->second.shape) {
      one.what = fmt::format("{} against {}", described_entry(entry), described_entry(other->second));
    } else {
      compare_values(a.tensor(section, name), b.tensor(section, name), std::move(one), into);
      continue;
    }
    into.tensors_differ.push_back(std::move(one));
  }
  for (const auto& [name, entry] : right)
    if (!left.contains(name)) into.tensors_differ.push_back({.section = section, .name = name, .what = "only in " + b.path()});
}

// training/state.json without the time that training took.
std::string comparable(const std::string& file, const std::string& text) {
  if (file != "training/state.json") return text;
  base::GuardedJson parsed = base::parse_json_guarded(text, 16);
  if (!parsed.trouble.empty() || !parsed.value.is_object()) return text;
  parsed.value.erase("seconds");
  return parsed.value.dump();
}

}  // namespace

SnapshotDiff diff(const OpenSnapshot& a, const OpenSnapshot& b) {
  SnapshotDiff found;
  std::set<std::string> sections, texts;
  for (const OpenSnapshot* one : {&a, &b}) {
    for (const std::string& name : one->sections()) sections.insert(name);
    for (const auto& [name, text] : one->texts()) texts.insert(name);
  }
  for (const std::string& section : sections) compare_section(a, b, section, found);
  for (const std::string& name : texts) {
    const auto left = a.texts().find(name), right = b.texts().find(name);
    if (left != a.texts().end() && right != b.texts().end() && comparable(name, left->second) == comparable(name, right->second)) continue;
    (kLayoutFiles.contains(name) ? found.layout_files : found.texts_differ).push_back(name);
  }
  return found;
}

}  // namespace cairn::snapshot
