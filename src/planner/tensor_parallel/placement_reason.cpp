#include "planner/tensor_parallel/placement_reason.h"

#include <fmt/format.h>

#include "mesh/placement.h"
#include "model/parameter.h"

namespace cairn::planner {
namespace {

// The dim that a placement splits along tp; -1: none.
int64_t dim_along_tp(const mesh::Placement& placement) {
  const mesh::Placement::How how = placement.on("tp");
  if (const auto* split = std::get_if<mesh::Split>(&how)) return split->dim;
  if (const auto* ragged = std::get_if<mesh::Ragged>(&how)) return ragged->dim;
  return -1;
}

std::string shared_reason(const model::Parameter& p, const std::string& axis, bool several_owners) {
  if (axis == "heads") return "whole query heads on each rank: attention works on each head alone";
  if (axis == "kv_heads" && several_owners) return "fewer key heads than ranks: those whose query heads read one hold it together";
  if (axis == "kv_heads") return "whole key heads on each rank, with the query heads that read them";
  if (axis == "qkv") return "whole heads of queries, keys and values on each rank: attention works on each head alone";
  if (axis == "mlp") return "the hidden width of the MLP: each of its elements is computed alone";
  if (axis == "vocab" && p.role == model::Parameter::Role::embedding)
    return "rows of the vocabulary: each rank looks up those that it has, and has their logits where the head is this table";
  if (axis == "vocab") return "rows of the vocabulary: each rank has their logits";
  return fmt::format("its {} is sharded", axis);
}

}  // namespace

std::string placement_reason(const model::Parameter& p, const mesh::Placement& placement) {
  const int64_t dim = dim_along_tp(placement);
  if (dim >= 0 && dim < static_cast<int64_t>(p.axes.size())) {
    const mesh::Placement::How how = placement.on("tp");
    return shared_reason(p, p.axes[static_cast<size_t>(dim)], std::holds_alternative<mesh::Ragged>(how));
  }
  if (dim >= 0) return fmt::format("dim {} is sharded", dim);
  if (!std::holds_alternative<mesh::Replicate>(placement.on("ep"))) return "whole experts on each rank along ep; tokens travel to them";
  switch (p.role) {
    case model::Parameter::Role::norm:
      return "small, and every token needs all of it";
    case model::Parameter::Role::bias:
      return "small: added once to what the ranks sum up";
    case model::Parameter::Role::embedding:
      return "every rank has tokens of every position";
    default:
      return "nothing shards it";
  }
}

}  // namespace cairn::planner
