#include "parallel/layout/place_overrides.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "model/model.h"
#include "model/name_pattern.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/tensor_split.h"

namespace cairn::parallel {
namespace {

std::string key_of(const std::string& pattern) { return fmt::format("{}.\"{}\"", kPlaceTable, pattern); }

// The longest stretch of a pattern without a star: "up_proj.weight" of "*.up_proj.weight".
std::string longest_words(const std::string& pattern) {
  std::string longest;
  for (size_t at = 0; at <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', at), pattern.size());
    std::string words = pattern.substr(at, end - at);
    while (words.starts_with('.')) words.erase(0, 1);
    while (words.ends_with('.')) words.pop_back();
    if (words.size() > longest.size()) longest = words;
    at = end + 1;
  }
  return longest;
}

// What a pattern that matches nothing may have meant: those words as some name has them, in the same pattern.
std::optional<std::string> meant_by(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string words = longest_words(pattern);
  const auto count = std::count(words.begin(), words.end(), '.');
  std::vector<std::string> known;
  for (const std::string& name : names)
    for (size_t at = 0; at < name.size();) {
      size_t end = at;
      for (int64_t i = 0; i <= count && end != std::string::npos; ++i) end = name.find('.', end + (i > 0 ? 1 : 0));
      known.push_back(name.substr(at, end == std::string::npos ? end : end - at));
      const size_t next = name.find('.', at);
      at = next == std::string::npos ? name.size() : next + 1;
    }
  const auto meant = words.empty() ? std::nullopt : base::nearest(words, known);
  if (!meant || *meant == words) return std::nullopt;
  std::string better = pattern;
  return better.replace(better.find(words), words.size(), *meant);
}

}  // namespace

int64_t parse_place(const std::string& key, const std::string& text) {
  if (text == "B") return -1;
  std::string digits = text.starts_with('S') ? text.substr(1) : "";
  if (digits.size() == 3 && digits.front() == '(' && digits.back() == ')') digits = digits.substr(1, 1);
  if (digits.size() != 1 || digits[0] < '0' || digits[0] > '7')
    base::fail_input("{} = \"{}\": is no placement of a parameter. Use B (replicated) or S(0), S(1), ... (split along a dim).", key, text);
  return digits[0] - '0';
}

std::map<std::string, std::string> matched_places(const PlaceOptions& place, const model::Model& model) {
  std::vector<std::string> names;
  for (const model::Parameter& parameter : model.parameters()) names.push_back(parameter.name);
  std::map<std::string, std::string> found, by;  // by parameter: placement, pattern
  for (const auto& [pattern, text] : place) {
    parse_place(key_of(pattern), text);
    bool any = false;
    for (const std::string& name : names) {
      if (!model::matches(pattern, name)) continue;
      any = true;
      const auto [known, added] = found.try_emplace(name, text);
      if (!added && parse_place(pattern, known->second) != parse_place(pattern, text))
        base::fail_input("{} = \"{}\" and {} = \"{}\" both match {}: make one of the patterns narrower", key_of(by[name]), known->second,
                         key_of(pattern), text, name);
      by.try_emplace(name, pattern);
    }
    if (any) continue;
    const auto meant = meant_by(pattern, names);
    base::fail_input("{} = \"{}\": there is no such parameter: {}", key_of(pattern), text,
                     meant ? fmt::format("did you mean \"{}\"?", *meant) : fmt::format("they are called {} and the like", names.front()));
  }
  return found;
}

void apply_overrides(Plan& plan, const model::Model& model, const PlaceOptions& place) {
  const std::map<std::string, std::string> wanted = matched_places(place, model);
  const int tp = plan.mesh.extent("tp");
  if (wanted.empty() || tp == 1) return;
  const bool given = !plan.placements.empty();
  for (const model::Parameter& parameter : model.parameters()) {
    const auto found = wanted.find(parameter.name);
    if (found == wanted.end() && (given || expert_dim(parameter) >= 0)) continue;
    if (expert_dim(parameter) >= 0)
      base::fail_input("{} = \"{}\": {} holds experts, which lie along ep and are whole along tp. Leave it out of the pattern.",
                       key_of(parameter.name), found->second, parameter.name);
    mesh::Placement& placement = plan.placements[parameter.name];
    placement = {};
    const int64_t dim = found == wanted.end() ? -1 : parse_place(parameter.name, found->second);
    if (found != wanted.end() && dim < 0) continue;
    if (found != wanted.end() && (dim >= static_cast<int64_t>(parameter.shape.size()) || parameter.shape[static_cast<size_t>(dim)] < tp))
      base::fail_input("{} = \"{}\": {} [{}] has no such dim of at least mesh.tp = {} indices. Use B, or another dim.", kPlaceTable,
                       found->second, parameter.name, fmt::join(parameter.shape, ", "), tp);
    const mesh::Placement own{{{"tp", native_or_replicated(parameter, tp)}}};
    const auto* split = std::get_if<mesh::Split>(&own.axes.front().how);
    if (found == wanted.end() || (split && split->dim == dim))
      placement = own;
    else
      placement.axes = {{"tp", mesh::Split{dim, {}}}};
  }
}

}  // namespace cairn::parallel
