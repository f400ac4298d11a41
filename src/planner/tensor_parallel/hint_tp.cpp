// Tensor parallelism guessed from the names of parameters.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "planner/tensor_parallel/auto_tp.h"

namespace cairn::planner {
namespace {

std::vector<std::string> cut_at(const std::string& text, const char* marks) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find_first_of(marks, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Parameters that share a rule.
struct NameGroup {
  std::string layer, last;   // "q_proj", "weight"
  bool in_attention = true;  // all of them
  bool same_rank = true;
  std::vector<int64_t> shape = {};
  std::vector<bool> valid = {};  // by dim: whether all of them can be split along it
};

using NameKey = std::pair<std::string, std::string>;

NameKey key_of(const std::string& name) {
  const std::vector<std::string> path = cut_at(name, "./");
  return {path.size() < 2 ? "" : path[path.size() - 2], path.back()};
}

std::map<NameKey, NameGroup> grouped(const std::vector<NamedShape>& parameters, int ranks) {
  std::map<NameKey, NameGroup> groups;
  for (const NamedShape& one : parameters) {
    const NameKey key = key_of(one.name);
    const auto [found, fresh] = groups.try_emplace(key, NameGroup{.layer = key.first, .last = key.second});
    NameGroup& group = found->second;
    if (fresh) group.shape = one.shape, group.valid.assign(one.shape.size(), true);
    group.in_attention =
        group.in_attention && (one.name.find("attn") != std::string::npos || one.name.find("attention") != std::string::npos ||
                               one.name.find("Attention") != std::string::npos);
    group.same_rank = group.same_rank && group.shape.size() == one.shape.size();
    for (size_t dim = 0; group.same_rank && dim < one.shape.size(); ++dim)
      group.valid[dim] = group.valid[dim] && one.shape[dim] % ranks == 0;
  }
  return groups;
}

enum class Side { in, out };

struct NameRule {
  Side side;
  std::string rule;
};

// What a layer's name says; nothing where it says nothing.
std::optional<NameRule> said_by(const NameGroup& group) {
  const std::string& name = group.layer;
  const auto touches = [&](const std::string& word) { return name.starts_with(word) || name.ends_with(word); };
  const auto begins = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return name.starts_with(word); });
  };
  const auto has_word = [&](const std::string& word) {
    const std::vector<std::string> words = cut_at(name, "_");
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (group.in_attention && (touches("q") || touches("k") || touches("v"))) return NameRule{Side::out, "hint: query, key or value"};
  if (group.in_attention && touches("o")) return NameRule{Side::in, "hint: output of an attention"};
  if (begins({"up", "gate", "wi"}) || has_word("in")) return NameRule{Side::out, "hint: first of a pair"};
  if (begins({"down", "wo"}) || has_word("out")) return NameRule{Side::in, "hint: second of a pair"};
  if (touches("head")) return NameRule{Side::out, "hint: head"};
  return std::nullopt;
}

}  // namespace

std::vector<RuledPlacement> hint_tp(const std::vector<NamedShape>& parameters, int ranks) {
  CAIRN_CHECK(ranks >= 1, "{} ranks", ranks);
  std::map<NameKey, NameGroup> groups = grouped(parameters, ranks);
  std::map<NameKey, std::pair<Sbp, std::string>> chosen;
  std::optional<Side> before;                // of the last layer whose name says nothing
  for (const auto& [key, group] : groups) {  // in the order of their names, as the original does
    auto& [sbp, rule] = chosen[key];
    if (ranks == 1 || group.shape.size() < 2 || !group.same_rank) {
      rule = ranks == 1 ? "replicated: one rank" : group.same_rank ? "replicated: one dim" : "replicated: unlike each other";
      continue;
    }
    const int out = group.last == "kernel" ? static_cast<int>(group.shape.size()) - 1 : 0, in = group.last == "kernel" ? 0 : 1;
    const bool table = group.last == "embedding" || group.layer.find("embed") != std::string::npos || group.layer == "wte";
    std::optional<NameRule> said = said_by(group);
    if (table) {
      said = NameRule{Side::out, "hint: embedding"};
    } else if (!said) {
      before = before == Side::out ? Side::in : Side::out;
      said = NameRule{*before, "hint: in turn"};
    }
    const int wanted = table ? 0 : said->side == Side::out ? out : in;
    int dim = -1;
    for (const int one : {wanted, table ? 1 : wanted == out ? in : out})
      if (dim < 0 && group.valid[static_cast<size_t>(one)]) dim = one;
    if (dim < 0) {
      rule = fmt::format("replicated: no dim is divisible by {}", ranks);
    } else {
      sbp = split_of(dim);
      rule = dim == wanted ? said->rule : fmt::format("{}, the other dim is not divisible by {}", said->rule, ranks);
    }
  }
  std::vector<RuledPlacement> all;
  for (const NamedShape& one : parameters) {
    const auto& [sbp, rule] = chosen.at(key_of(one.name));
    all.push_back({one.name, how_of({.name = one.name, .shape = one.shape}, sbp, ranks).value(), rule});
  }
  return all;
}

}  // namespace cairn::planner
