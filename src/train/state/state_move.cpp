#include "train/state/state_move.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::train {
namespace {

// Of several ranks that had it: neighbours in rank order stand along the innermost axes.
int nearest(const std::vector<int>& ranks, int to) {
  return *std::min_element(ranks.begin(), ranks.end(), [to](int a, int b) { return std::abs(a - to) < std::abs(b - to); });
}

// The elements of a logical box in a flat tensor that has `whole` of it.
at::Tensor box_in(const at::Tensor& flat, const mesh::Box& box, const mesh::FragmentBox& whole) {
  std::vector<int64_t> lengths;
  for (const mesh::Interval& dim : box.dims) lengths.push_back(dim.length());
  return flat.as_strided(lengths, whole.strides, flat.storage_offset() + mesh::start_of(box, whole));
}

}  // namespace

std::vector<StateMove::Source> StateMove::sources(size_t parameter) const {
  std::vector<Source> all;
  for (const bool first : {true, false})  // first copies had all of it; others help where they were cut in the same way
    for (const parallel::StateMap::Holding& one : before_.holdings(parameter)) {
      if (one.first_copy != first) continue;
      auto found = std::find_if(all.begin(), all.end(), [&](const Source& source) { return source.fragment == one.fragment; });
      if (found == all.end() && first) found = all.insert(all.end(), {one.fragment, {}});
      if (found != all.end()) found->ranks.push_back(one.rank);
    }
  return all;
}

std::vector<StateMove::Part> StateMove::parts(const std::vector<Source>& sources, int from, const parallel::StateMap::Holding& to) {
  std::vector<Part> all;
  for (const Source& source : sources) {
    if (nearest(source.ranks, to.rank) != from) continue;
    for (const mesh::FragmentBox& had : mesh::boxes_of(source.fragment))
      for (const mesh::FragmentBox& has : mesh::boxes_of(to.fragment))
        if (const auto common = mesh::intersect(had.box, has.box); common && common->elements() > 0) all.push_back({*common, had, has});
  }
  return all;
}

int64_t StateMove::run(const StateTensor& from, const StateTensor& into) const {
  const size_t p = from.parameter;
  if (before_.holdings(p) == after_.holdings(p)) {
    if (into.mine.defined()) into.mine.view({-1}).copy_(from.mine.view({-1}));
    return 0;
  }
  CAIRN_CHECK(from.by_element && into.name == from.name && into.parameter == p, "{} has no number for each element", from.name);
  const std::vector<Source> had = sources(p);
  const int me = group_.rank();
  const auto ranks = static_cast<size_t>(group_.size());
  std::vector<int64_t> out_counts(ranks, 0), in_counts(ranks, 0);
  std::vector<at::Tensor> leaving;
  std::vector<std::pair<int, std::vector<Part>>> arriving;
  const at::Tensor own = from.mine.defined() ? from.mine.contiguous().view({-1}) : at::Tensor();
  for (const parallel::StateMap::Holding& to : after_.holdings(p)) {  // in the order of the ranks
    for (const Part& part : parts(had, me, to)) {
      const at::Tensor values = box_in(own, part.box, part.from);
      if (to.rank == me) {
        box_in(into.mine.view({-1}), part.box, part.to).copy_(values);
        continue;
      }
      leaving.push_back(values.reshape({-1}));
      out_counts[static_cast<size_t>(to.rank)] += values.numel();
    }
    if (to.rank != me) continue;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank == me) continue;
      arriving.emplace_back(rank, parts(had, rank, to));
      for (const Part& part : arriving.back().second) in_counts[static_cast<size_t>(rank)] += part.box.elements();
    }
  }
  const at::Tensor& like = from.mine.defined() ? from.mine : into.mine;
  const auto options = like.defined() ? like.options() : at::TensorOptions().dtype(from.dtype);
  const at::Tensor out = leaving.empty() ? at::empty({0}, options) : at::cat(leaving);
  const at::Tensor in = at::empty({std::accumulate(in_counts.begin(), in_counts.end(), int64_t{0})}, options);
  group_.all_to_all(in, out, {comm::Purpose::state, from.name}, in_counts, out_counts).wait();
  int64_t at = 0;
  for (const auto& [rank, list] : arriving)
    for (const Part& part : list) {
      const at::Tensor there = box_in(into.mine.view({-1}), part.box, part.to);
      there.copy_(in.narrow(0, at, there.numel()).view(there.sizes()));
      at += there.numel();
    }
  return static_cast<int64_t>(out.nbytes());
}

}  // namespace cairn::train
