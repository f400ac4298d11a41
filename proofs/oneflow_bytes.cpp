#include "proofs/oneflow_bytes.h"

#include <algorithm>
#include <map>
#include <set>

namespace cairn::study {
namespace {

using namespace planner;

// What is left of these indices for one of `parts`: the first (size mod parts) parts are one longer.
std::vector<int64_t> part_of(const std::vector<int64_t>& indices, int parts, int part) {
  std::vector<int64_t> mine;
  const auto n = static_cast<int64_t>(indices.size());
  int64_t begin = 0;
  for (int p = 0; p < part; ++p) begin += n / parts + (p < n % parts ? 1 : 0);
  const int64_t length = n / parts + (part < n % parts ? 1 : 0);
  for (int64_t i = begin; i < begin + length; ++i) mine.push_back(indices[static_cast<size_t>(i)]);
  return mine;
}

// The elements of which a rank has a value, or a term. The outer axis is cut first.
std::set<int64_t> elements_of(const mesh::Mesh& mesh, const std::vector<int64_t>& shape, const NdSbp& nd_sbp, int rank) {
  std::vector<std::vector<int64_t>> dims(shape.size());
  for (size_t d = 0; d < shape.size(); ++d)
    for (int64_t i = 0; i < shape[d]; ++i) dims[d].push_back(i);
  for (size_t axis = 0; axis < nd_sbp.size(); ++axis)
    if (nd_sbp[axis].kind == Sbp::Kind::split) {
      auto& indices = dims[static_cast<size_t>(nd_sbp[axis].dim)];
      indices = part_of(indices, mesh.axes[axis].size, mesh.coordinate(rank, mesh.axes[axis].name));
    }
  std::set<int64_t> all;
  for (const int64_t row : dims[0])
    for (const int64_t column : dims[1]) all.insert(row * shape[1] + column);
  return all;
}

struct Wanted {
  std::set<int> holders, wanting;
};

}  // namespace

int64_t least_elements(const mesh::Mesh& mesh, const std::vector<int64_t>& shape, const NdSbp& from, const NdSbp& to) {
  std::map<int, std::set<int64_t>> has, gets;
  for (const int rank : mesh.members()) has[rank] = elements_of(mesh, shape, from, rank), gets[rank] = elements_of(mesh, shape, to, rank);
  // On the way into a sum, one term is the value: that of the coordinate that had it, else of coordinate 0. The others are zero.
  const auto is_given = [&](int rank, int64_t element) {
    for (size_t axis = 0; axis < to.size(); ++axis) {
      if (to[axis] != kPartial || from[axis] == kPartial) continue;
      const std::string& name = mesh.axes[axis].name;
      const int own = mesh.coordinate(rank, name);
      bool had = from[axis] == kReplicate && own == 0;
      for (const int other : mesh.members())
        had = had || (from[axis] != kReplicate && mesh.coordinate(other, name) == own && has[other].contains(element));
      if (!had) return false;
    }
    return true;
  };
  // Copies serve themselves: ranks that differ along a replicated axis, or along one that stays a sum, do not talk to each other.
  std::map<std::pair<std::vector<int>, int64_t>, Wanted> all;
  for (const int rank : mesh.members()) {
    std::vector<int> copy;
    for (size_t axis = 0; axis < from.size(); ++axis)
      if (from[axis] == kReplicate || (from[axis] == kPartial && to[axis] == kPartial))
        copy.push_back(mesh.coordinate(rank, mesh.axes[axis].name));
    for (const int64_t element : has[rank]) all[{copy, element}].holders.insert(rank);
    for (const int64_t element : gets[rank])
      if (is_given(rank, element)) all[{copy, element}].wanting.insert(rank);
  }
  int64_t least = 0;
  for (const auto& [key, one] : all) {
    if (one.wanting.empty()) continue;
    const bool meets = std::any_of(one.wanting.begin(), one.wanting.end(), [&](int rank) { return one.holders.contains(rank); });
    // terms - 1 to be summed, one for each further rank that wants the result, and one where no holder wants it.
    least += static_cast<int64_t>(one.holders.size() - 1 + one.wanting.size() - 1) + (meets ? 0 : 1);
  }
  return least;
}

}  // namespace cairn::study
