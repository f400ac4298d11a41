#include "parallel/layout/tensor_split.h"

#include <fmt/format.h>

#include "base/check.h"
#include "mesh/local_shard.h"
#include "mesh/splits.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

// Heads of queries and of keys of an attention, whichever of its parameters tells.
struct HeadCounts {
  int64_t queries = 0, keys = 0;
};

bool is_heads(const std::string& axis) { return axis == "heads" || axis == "kv_heads" || axis == "qkv"; }
// Split evenly: the width of the MLP, the vocabulary, streams that lie along tp.
bool is_rows(const std::string& axis) { return axis == "mlp" || axis == "vocab" || axis == "tp_streams"; }

HeadCounts count_heads(const model::Parameter& p, const std::string& axis, int64_t width) {
  const int64_t heads = width / p.head_width, heads_per_key = p.queries_per_key;
  if (axis == "heads") return {heads, heads / heads_per_key};
  if (axis == "kv_heads") return {heads * heads_per_key, heads};
  const int64_t keys = heads / (heads_per_key + 2);
  return {keys * heads_per_key, keys};
}

bool can_split(const HeadCounts& heads, int ranks) {
  if (heads.keys >= ranks) return true;
  return ranks % heads.keys == 0 && heads.queries % ranks == 0;
}

// Whole groups of query heads with their key head where there are enough; else query heads evenly, several ranks to a key head.
std::vector<int64_t> query_heads(const HeadCounts& heads, int ranks) {
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r)
    counts.push_back(heads.keys >= ranks ? mesh::even_part(heads.keys, ranks, r).length() * (heads.queries / heads.keys)
                                         : heads.queries / ranks);
  return counts;
}

mesh::Split by_heads(int64_t dim, std::vector<int64_t> counts, int64_t width) {
  for (int64_t& count : counts) count *= width;
  return mesh::split_by_counts(dim, counts);
}

mesh::Placement::How split_heads(const model::Parameter& p, const std::string& axis, int64_t dim, int ranks) {
  const HeadCounts heads = count_heads(p, axis, p.shape[static_cast<size_t>(dim)]);
  if (axis == "heads") return by_heads(dim, query_heads(heads, ranks), p.head_width);
  if (axis == "qkv") {
    const int64_t q = heads.queries * p.head_width, kv = heads.keys * p.head_width;
    return mesh::split_fused(dim, {q, kv, kv}, ranks, p.head_width);
  }
  if (heads.keys >= ranks) {
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks; ++r) counts.push_back(mesh::even_part(heads.keys, ranks, r).length());
    return by_heads(dim, counts, p.head_width);
  }
  mesh::Ragged table{.dim = dim, .owners = {}, .lengths = std::vector<int64_t>(static_cast<size_t>(heads.keys), p.head_width)};
  const int together = ranks / static_cast<int>(heads.keys);
  for (int head = 0; head < heads.keys; ++head) {
    std::vector<int>& owners = table.owners.emplace_back();
    for (int i = 0; i < together; ++i) owners.push_back(head * together + i);
  }
  return table;
}

// Whether there are enough heads and rows for tensor_split.
bool has_split(const model::Parameter& parameter, int ranks) {
  for (size_t dim = 0; ranks > 1 && dim < parameter.axes.size(); ++dim) {
    const std::string& axis = parameter.axes[dim];
    if (is_rows(axis) && parameter.shape[dim] < ranks) return false;
    if (!is_heads(axis)) continue;
    const HeadCounts heads = count_heads(parameter, axis, parameter.shape[dim]);
    if (!can_split(heads, ranks) || (axis == "qkv" && heads.keys < ranks)) return false;
  }
  return true;
}

}  // namespace

mesh::Placement::How tensor_split(const model::Parameter& p, int ranks) {
  if (ranks == 1) return mesh::Replicate{};
  for (size_t dim = 0; dim < p.axes.size(); ++dim) {
    const std::string& axis = p.axes[dim];
    if (is_heads(axis)) return split_heads(p, axis, static_cast<int64_t>(dim), ranks);
    if (is_rows(axis) && !p.sections.empty()) return mesh::split_fused(static_cast<int64_t>(dim), p.sections, ranks, 1);
    if (is_rows(axis)) {
      std::vector<int64_t> counts;
      for (int r = 0; r < ranks; ++r) counts.push_back(mesh::even_part(p.shape[dim], ranks, r).length());
      return mesh::split_by_counts(static_cast<int64_t>(dim), counts);
    }
  }
  return mesh::Replicate{};
}

mesh::Placement::How native_or_replicated(const model::Parameter& parameter, int ranks) {
  return has_split(parameter, ranks) ? tensor_split(parameter, ranks) : mesh::Replicate{};
}

bool is_native_split(const model::Parameter& parameter, const mesh::Mesh& mesh, const mesh::Placement& placement) {
  for (const mesh::Placement::OnAxis& on : placement.axes)
    if (std::holds_alternative<mesh::Partial>(on.how) || (on.axis != "tp" && !std::holds_alternative<mesh::Replicate>(on.how)))
      return false;
  const int ranks = mesh.extent("tp");
  if (!has_split(parameter, ranks)) return false;
  const mesh::Placement native{{{"tp", tensor_split(parameter, ranks)}}};
  for (const int rank : mesh.peers(mesh.members().front(), "tp"))
    if (mesh::local_shard(placement, mesh.axis_coordinates(rank), parameter.shape) !=
        mesh::local_shard(native, mesh.axis_coordinates(rank), parameter.shape))
      return false;
  return true;
}

void check_tensor_split(const model::Model& model, int ranks) {
  if (ranks == 1) return;
  bool shared = false;
  for (const model::Parameter& p : model.parameters())
    for (size_t dim = 0; dim < p.axes.size(); ++dim) {
      const std::string& axis = p.axes[dim];
      if (is_heads(axis)) {
        shared = true;
        const HeadCounts heads = count_heads(p, axis, p.shape[dim]);
        // Heads of one stacked matrix are never held by several ranks.
        const auto works = [&](int n) { return can_split(heads, n) && (axis != "qkv" || heads.keys >= n); };
        if (works(ranks)) continue;
        int nearest = ranks;
        while (!works(nearest)) --nearest;
        base::fail_input("mesh.tp = {}: {} query and {} key heads cannot be split over so many ranks ({}): the next smaller is {}", ranks,
                         heads.queries, heads.keys, p.name, nearest);
      }
      if (axis == "normed_heads")
        base::fail_input("mesh.tp = {}: {} norms all heads of a token together, so they are not split over ranks. Use mesh.dp or mesh.pp.",
                         ranks, p.name);
      if (axis == "tp_streams") shared = true;
      for (const int64_t section : p.sections)
        if (is_rows(axis) && section % ranks != 0)
          base::fail_input("mesh.tp = {}: {} has widths that are {} apart, which do not divide over so many ranks. Choose other widths.",
                           ranks, p.name, section);
      if (is_rows(axis) && p.shape[dim] < ranks)
        base::fail_input("mesh.tp = {}: {} has {} rows of {}: use at most {}", ranks, p.name, p.shape[dim], axis, p.shape[dim]);
    }
  if (!shared) base::fail_input("mesh.tp = {}: this model has no heads to split along tp: use mesh.dp instead", ranks);
}

}  // namespace cairn::parallel
