#pragma once
// Placements element by element, the slow way: what redistribute is tested against. Shares no code with what it tests beyond the values
// Mesh and Placement and their coordinates.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/aten.h"
#include "mesh/layout_change.h"

namespace cairn::mesh::brute {

using Indices = std::vector<std::vector<int64_t>>;  // per dim, in storage order

inline int coordinate(const Mesh& mesh, int rank, const std::string& axis) { return mesh.coordinate(rank, axis); }

inline bool owned(const Ragged& table, size_t id, int coordinate) {
  for (int owner : table.owners[id])
    if (owner == coordinate) return true;
  return false;
}

// Which indices of a dim of `size` go to one of `parts`: dealt like cards into stacks whose first (size mod parts) are one higher.
inline std::vector<int64_t> even(int64_t size, int64_t parts, int64_t part) {
  std::vector<int64_t> heights(static_cast<size_t>(parts), 0), result;
  for (int64_t card = 0; card < size; ++card) ++heights[static_cast<size_t>(card % parts)];
  int64_t first = 0;
  for (int64_t p = 0; p < part; ++p) first += heights[static_cast<size_t>(p)];
  for (int64_t i = 0; i < heights[static_cast<size_t>(part)]; ++i) result.push_back(first + i);
  return result;
}

inline Indices held(const Layout& layout, int rank, const std::vector<int64_t>& shape) {
  Indices result;
  for (int64_t size : shape) result.push_back(even(size, 1, 0));
  for (const auto& on : layout.placement.axes) {
    const int c = coordinate(layout.mesh, rank, on.axis);
    const auto keep = [&](int64_t dim, const std::vector<int64_t>& which) {
      std::vector<int64_t> kept;
      for (int64_t i : which) kept.push_back(result[static_cast<size_t>(dim)][static_cast<size_t>(i)]);
      result[static_cast<size_t>(dim)] = kept;
    };
    if (const auto* split = std::get_if<Split>(&on.how)) {
      std::vector<int64_t> which;
      if (split->pieces.empty())
        which = even(static_cast<int64_t>(result[static_cast<size_t>(split->dim)].size()), layout.mesh.extent_at(rank, on.axis), c);
      else
        for (const Interval& piece : split->pieces[static_cast<size_t>(c)])
          for (int64_t i = piece.begin; i < piece.end; ++i) which.push_back(i);
      keep(split->dim, which);
    }
    if (const auto* ragged = std::get_if<Ragged>(&on.how)) {
      std::vector<int64_t> which;
      const auto size = static_cast<int64_t>(result[static_cast<size_t>(ragged->dim)].size());
      int64_t begin = 0;
      for (size_t id = 0; id < ragged->owners.size(); ++id) {
        const int64_t length =
            ragged->lengths.empty()
                ? static_cast<int64_t>(even(size, static_cast<int64_t>(ragged->owners.size()), static_cast<int64_t>(id)).size())
                : ragged->lengths[id];
        if (owned(*ragged, id, c))
          for (int64_t i = 0; i < length; ++i) which.push_back(begin + i);
        begin += length;
      }
      keep(ragged->dim, which);
    }
  }
  return result;
}

// Flat logical indices of a rank's local elements, in storage order; any number of dims.
inline std::vector<int64_t> elements(const Layout& layout, int rank, const std::vector<int64_t>& shape) {
  if (!layout.mesh.contains(rank)) return {};
  std::vector<int64_t> flat{0};
  const Indices indices = held(layout, rank, shape);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<int64_t> next;
    for (int64_t at : flat)
      for (int64_t i : indices[dim]) next.push_back(at * shape[dim] + i);
    flat = next;
  }
  return flat;
}

inline std::vector<int64_t> local_shape(const Layout& layout, int rank, const std::vector<int64_t>& shape) {
  if (!layout.mesh.contains(rank)) return {0};
  std::vector<int64_t> result;
  for (const auto& dim : held(layout, rank, shape)) result.push_back(static_cast<int64_t>(dim.size()));
  return result;
}

inline bool is_max(const Layout& layout) {
  for (const auto& on : layout.placement.axes)
    if (const auto* partial = std::get_if<Partial>(&on.how)) return partial->reduce == Partial::Reduce::max;
  return false;
}

// The term of element `e` that the k-th of n holders has: arbitrary, but such that the terms reduce to the value.
inline double term(double value, int64_t e, size_t k, size_t n, bool maximum) {
  if (maximum) return static_cast<size_t>(e) % n == k ? value : value - 1.0 - static_cast<double>(k);
  if (n == 1) return value;
  double noise = 0;
  for (size_t i = 0; i + 1 < n; ++i) {
    const double part = static_cast<double>((e * 7 + static_cast<int64_t>(i) * 13) % 11) - 5.0;
    if (i == k) return part;
    noise += part;
  }
  return value - noise;
}

// Who holds which elements of a tensor that lies like this.
class Census {
 public:
  Census(Layout layout, std::vector<int64_t> shape) : layout_(std::move(layout)), shape_(std::move(shape)) {
    for (int rank : layout_.mesh.members()) {
      own_[rank] = elements(layout_, rank, shape_);
      for (const std::string& axis : axis_names())
        if (!is_partial(layout_.placement.on(axis))) key_[rank].push_back(layout_.mesh.coordinate(rank, axis));
      for (int64_t e : own_[rank]) beside_[{key_[rank], e}].push_back(rank);
    }
  }

  const Layout& layout() const { return layout_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& own(int rank) const { return own_.at(rank); }
  // The ranks that hold terms of element `e` beside `rank`, itself included: those that differ from it along partial axes only.
  const std::vector<int>& terms(int rank, int64_t e) const { return beside_.at({key_.at(rank), e}); }

  // What a rank holds of a logical tensor [float64, contiguous].
  at::Tensor part(const at::Tensor& logical, int rank, at::ScalarType dtype = at::kFloat) const {
    at::Tensor local = at::zeros(local_shape(layout_, rank, shape_), at::kDouble);
    if (!layout_.mesh.contains(rank)) return local.to(dtype);
    for (size_t i = 0; i < own(rank).size(); ++i) {
      const int64_t e = own(rank)[i];
      const std::vector<int>& beside = terms(rank, e);
      const auto k = static_cast<size_t>(std::find(beside.begin(), beside.end(), rank) - beside.begin());
      local.data_ptr<double>()[i] = term(logical.data_ptr<double>()[e], e, k, beside.size(), is_max(layout_));
    }
    return local.to(dtype);
  }

  // The logical tensor that the ranks' parts make up. Throws where replicas differ in a bit, a shape is wrong or an element is missing.
  at::Tensor put_together(const std::vector<at::Tensor>& parts) const {
    std::map<int, std::map<int64_t, double>> values;
    for (const auto& [rank, own] : own_) {
      const at::Tensor& part = parts[static_cast<size_t>(rank)];
      if (part.sizes().vec() != local_shape(layout_, rank, shape_))
        throw std::runtime_error("rank " + std::to_string(rank) + ": wrong shape");
      const at::Tensor local = part.to(at::kDouble).contiguous();
      for (size_t i = 0; i < own.size(); ++i) values[rank][own[i]] = local.data_ptr<double>()[i];
    }
    at::Tensor logical = at::full(shape_, std::nan(""), at::kDouble);
    for (const auto& [rank, mine] : values)
      for (const auto& [e, ignored] : mine) {
        double value = is_max(layout_) ? -std::numeric_limits<double>::infinity() : 0;
        for (int other : terms(rank, e)) value = is_max(layout_) ? std::max(value, values.at(other).at(e)) : value + values.at(other).at(e);
        double& place = logical.data_ptr<double>()[e];
        if (!std::isnan(place) && place != value) throw std::runtime_error("replicas differ at element " + std::to_string(e));
        place = value;
      }
    for (int64_t e = 0; e < logical.numel(); ++e)
      if (std::isnan(logical.data_ptr<double>()[e])) throw std::runtime_error("nobody holds element " + std::to_string(e));
    return logical;
  }

 private:
  Layout layout_;
  std::vector<int64_t> shape_;
  std::map<int, std::vector<int64_t>> own_;
  std::map<int, std::vector<int>> key_;
  std::map<std::pair<std::vector<int>, int64_t>, std::vector<int>> beside_;
};

// Whether a rank must really be given an element on the way into partial sums: the coordinate that had it, else coordinate 0.
inline bool wants(const Census& from, const Census& to, int rank, int64_t e) {
  for (const auto& on : to.layout().placement.axes) {
    const auto before = from.layout().placement.on(on.axis);
    if (!std::holds_alternative<Partial>(on.how) || before == on.how) continue;
    const int own = to.layout().mesh.coordinate(rank, on.axis);
    if (!std::holds_alternative<Split>(before)) {
      if (own != 0) return false;
      continue;
    }
    bool had = false;
    for (int other : from.layout().mesh.members())
      if (from.layout().mesh.coordinate(other, on.axis) == own)
        had = had || std::find(from.own(other).begin(), from.own(other).end(), e) != from.own(other).end();
    if (!had) return false;
  }
  return true;
}

// Elements that must cross between ranks of one mesh, if each replica serves itself: an element that `wanted` ranks of a replica want as
// the reduction of `terms` values takes terms - 1 messages to be reduced and wanted - 1 to be spread, and one more where none that want it
// holds a term.
inline int64_t least_elements(const Census& from, const Census& to) {
  struct Class {
    std::set<int> holders, wanted;
  };
  std::map<std::pair<std::vector<int>, int64_t>, Class> classes;  // by coordinates on axes that neither split nor are reduced, and element
  const Mesh& mesh = from.layout().mesh;
  for (int rank : mesh.members()) {
    std::vector<int> key;
    for (const std::string& axis : axis_names()) {
      const auto how = from.layout().placement.on(axis);
      const bool stays = is_partial(how) && how == to.layout().placement.on(axis);
      if (std::holds_alternative<Replicate>(how) || stays) key.push_back(mesh.coordinate(rank, axis));
    }
    for (int64_t e : from.own(rank)) classes[{key, e}].holders.insert(rank);
    for (int64_t e : to.own(rank))
      if (wants(from, to, rank, e)) classes[{key, e}].wanted.insert(rank);
  }
  int64_t least = 0;
  for (const auto& [at, one] : classes) {
    if (one.wanted.empty()) continue;
    bool meets = false;
    for (int rank : one.wanted) meets = meets || one.holders.contains(rank);
    least += static_cast<int64_t>(one.holders.size()) - 1 + static_cast<int64_t>(one.wanted.size()) - 1 + (meets ? 0 : 1);
  }
  return least;
}

}  // namespace cairn::mesh::brute
