#include "planner/sbp/signatures.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "mesh/splits.h"

namespace cairn::planner {
namespace {

bool in_units(const GraphTensor& tensor, size_t dim) { return !tensor.grains.empty() && tensor.grains[dim] != Grain{}; }

mesh::Split in_parts(int64_t dim, int64_t parts, int ranks, int64_t unit) {
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(mesh::even_part(parts, ranks, r).length() * unit);
  return mesh::split_by_counts(dim, counts);
}

std::optional<mesh::Placement::How> cut_units(const GraphTensor& tensor, int64_t dim, int ranks) {
  const Grain& grain = tensor.grains[static_cast<size_t>(dim)];
  if (!grain.sections.empty()) {
    // Where keys are shared by several queries, even parts of each go together only if all parts are equal.
    const bool grouped = std::any_of(grain.sections.begin(), grain.sections.end(), [&](int64_t s) { return s != grain.sections[0]; });
    for (const int64_t section : grain.sections)
      if (section / grain.unit < ranks || (grouped && section / grain.unit % ranks != 0)) return std::nullopt;
    return mesh::split_fused(dim, grain.sections, ranks, grain.unit);
  }
  const int64_t units = tensor.shape[static_cast<size_t>(dim)] / grain.unit, groups = units / grain.group;
  if (groups >= ranks) return in_parts(dim, groups, ranks, grain.unit * grain.group);
  if (ranks % groups != 0) return std::nullopt;
  if (!grain.shared)
    return units % ranks == 0 ? std::optional<mesh::Placement::How>(in_parts(dim, units, ranks, grain.unit)) : std::nullopt;
  mesh::Ragged table{.dim = dim, .owners = {}, .lengths = std::vector<int64_t>(static_cast<size_t>(units), grain.unit)};
  const int together = ranks / static_cast<int>(units);
  for (int unit = 0; unit < units; ++unit) {
    std::vector<int>& owners = table.owners.emplace_back();
    for (int i = 0; i < together; ++i) owners.push_back(unit * together + i);
  }
  return table;
}

// The SBP of a tensor if the index `letter` is split.
Sbp along(const std::string& indices, char letter) {
  const size_t dim = indices.find(letter);
  return dim == std::string::npos ? kReplicate : split_of(static_cast<int>(dim));
}

}  // namespace

std::string to_string(const Sbp& sbp) {
  switch (sbp.kind) {
    case Sbp::Kind::replicate:
      return "B";
    case Sbp::Kind::partial:
      return "P";
    case Sbp::Kind::split:
      break;
  }
  return fmt::format("S{}", sbp.dim);
}

std::string to_string(const NdSbp& nd_sbp, const mesh::Mesh& mesh) {
  std::string text;
  for (size_t i = 0; i < nd_sbp.size(); ++i)
    if (mesh.axes[i].size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", mesh.axes[i].name, to_string(nd_sbp[i]));
  return text.empty() ? "B" : text;
}

Sbp parse_sbp(std::string_view text) {
  if (text == "B") return kReplicate;
  if (text == "P") return kPartial;
  if (text.size() == 4 && text.starts_with("S(") && text[3] == ')' && text[2] >= '0' && text[2] <= '7') return split_of(text[2] - '0');
  if (text.size() == 2 && text[0] == 'S' && text[1] >= '0' && text[1] <= '7') return split_of(text[1] - '0');
  base::fail_input(
      "\"{}\" is no placement along an axis: use B (all of it on every rank), P (partial sums) or S0, S1, ... (split along a dim)", text);
}

Sbp dual(Sbp sbp) {
  if (sbp.kind == Sbp::Kind::split) return sbp;
  return sbp.kind == Sbp::Kind::replicate ? kPartial : kReplicate;
}

NdSbp dual(const NdSbp& nd_sbp) {
  NdSbp all;
  for (const Sbp& sbp : nd_sbp) all.push_back(dual(sbp));
  return all;
}

std::vector<SbpSignature> signatures(const OpGraph& graph, const GraphOp& op, int ranks) {
  const std::vector<std::string> all = subscripts(op);
  const std::string& out = all.back();
  const size_t inputs = op.inputs.size();
  std::vector<SbpSignature> found;
  if (ranks > 1) {
    std::string order = out;  // indices of the output first, then those that are summed over
    for (size_t i = 0; i < inputs; ++i)
      for (const char letter : all[i])
        if (order.find(letter) == std::string::npos) order += letter;
    for (const char letter : order) {
      if (op.whole.find(letter) != std::string::npos) continue;
      SbpSignature signature{.letter = letter};
      bool can = true;
      for (size_t i = 0; i < inputs; ++i) {
        signature.inputs.push_back(along(all[i], letter));
        can = can && how_of(graph.tensors[static_cast<size_t>(op.inputs[i])], signature.inputs[i], ranks);
      }
      signature.output = out.find(letter) != std::string::npos ? along(out, letter) : kPartial;
      if (can && how_of(graph.tensors[static_cast<size_t>(op.output)], signature.output, ranks)) found.push_back(std::move(signature));
    }
    if (op.linear == GraphOp::Linear::jointly) found.push_back({std::vector<Sbp>(inputs, kPartial), kPartial});
    for (size_t i = 0; op.linear == GraphOp::Linear::each && i < inputs; ++i) {
      SbpSignature signature{std::vector<Sbp>(inputs, kReplicate), kPartial};
      signature.inputs[i] = kPartial;
      found.push_back(std::move(signature));
    }
  }
  found.push_back({std::vector<Sbp>(inputs, kReplicate), kReplicate});
  return found;
}

Sbp sbp_of(const mesh::Placement::How& how) {
  if (const auto* split = std::get_if<mesh::Split>(&how)) return split_of(static_cast<int>(split->dim));
  if (const auto* ragged = std::get_if<mesh::Ragged>(&how)) return split_of(static_cast<int>(ragged->dim));
  return mesh::is_partial(how) ? kPartial : kReplicate;
}

std::optional<mesh::Placement::How> how_of(const GraphTensor& tensor, Sbp sbp, int ranks) {
  if (sbp.kind == Sbp::Kind::replicate || ranks == 1) return mesh::Replicate{};
  if (sbp.kind == Sbp::Kind::partial) return mesh::Partial{};
  const auto dim = static_cast<size_t>(sbp.dim);
  if (dim >= tensor.shape.size()) return std::nullopt;
  if (in_units(tensor, dim)) return cut_units(tensor, sbp.dim, ranks);
  if (tensor.shape[dim] < ranks) return std::nullopt;
  return mesh::Split{.dim = sbp.dim};
}

bool fits(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh) {
  std::map<int, std::pair<int, int64_t>> cuts;  // by dim: how many axes, into how many parts
  for (size_t i = 0; i < nd_sbp.size(); ++i) {
    if (nd_sbp[i].kind != Sbp::Kind::split || mesh.axes[i].size == 1) continue;
    if (!how_of(tensor, nd_sbp[i], mesh.axes[i].size)) return false;
    auto& [axes, parts] = cuts.try_emplace(nd_sbp[i].dim, 0, int64_t{1}).first->second;
    ++axes;
    parts *= mesh.axes[i].size;
  }
  return std::all_of(cuts.begin(), cuts.end(), [&](const auto& cut) {
    const auto dim = static_cast<size_t>(cut.first);
    return in_units(tensor, dim) ? cut.second.first == 1 : cut.second.second <= tensor.shape[dim];
  });
}

mesh::Placement placement_of(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh) {
  CAIRN_CHECK(nd_sbp.size() == mesh.axes.size(), "{}: {} placements for {} axes", tensor.name, nd_sbp.size(), mesh.axes.size());
  mesh::Placement placement;
  for (size_t i = 0; i < nd_sbp.size(); ++i) {
    if (mesh.axes[i].size == 1 || nd_sbp[i] == kReplicate) continue;
    const auto how = how_of(tensor, nd_sbp[i], mesh.axes[i].size);
    CAIRN_CHECK(how, "{}: cannot be {} over {} ranks along {}", tensor.name, to_string(nd_sbp[i]), mesh.axes[i].size, mesh.axes[i].name);
    placement.axes.push_back({mesh.axes[i].name, *how});
  }
  return placement;
}

}  // namespace cairn::planner
