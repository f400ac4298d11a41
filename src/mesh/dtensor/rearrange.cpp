// Operations on DTensors that rearrange a tensor (views, slices, concatenations, lookups), or need nothing of it but its options.
#include <algorithm>
#include <functional>
#include <map>

#include "kernels/aten.h"
#include "mesh/dtensor/op_call.h"
#include "mesh/dtensor/view_rules.h"

namespace cairn::mesh::dispatch {
namespace {

using Rearranged = std::optional<at::Tensor>;

int64_t wrapped(int64_t dim, int64_t dims) { return dim < 0 ? dim + dims : dim; }

// The part of a shape that this rank has.
std::vector<int64_t> local_shape(const OpCall& call, std::vector<int64_t> shape, const Placement::How& how) {
  if (const auto* split = std::get_if<Split>(&how)) {
    int64_t mine = 0;
    for (const Interval& one : split->pieces[static_cast<size_t>(call.axis->rank())]) mine += one.length();
    shape[static_cast<size_t>(split->dim)] = mine;
  }
  return shape;
}

Rearranged view_as(const OpCall& call, std::vector<int64_t> shape) {
  const at::Tensor& from = call.tensor(0);
  int64_t known = 1, free = -1;
  for (size_t i = 0; i < shape.size(); ++i) shape[i] < 0 ? free = static_cast<int64_t>(i) : known *= shape[i];
  if (free >= 0) shape[static_cast<size_t>(free)] = from.numel() / std::max<int64_t>(1, known);
  Placement::How how = how_of(from);
  if (const auto* split = std::get_if<Split>(&how)) {
    const std::optional<Split> after = viewed(*split, from.sizes().vec(), shape, call.ranks());
    if (!after) return std::nullopt;
    how = *after;
  }
  return made(call, local_of(from).reshape(local_shape(call, shape, how)), how, shape);
}

Rearranged expand(const OpCall& call) {
  const at::Tensor& from = call.tensor(0);
  std::vector<int64_t> shape = call.arguments[1].toIntVector();
  const size_t more = shape.size() - static_cast<size_t>(from.dim());
  for (size_t i = more; i < shape.size(); ++i)
    if (shape[i] < 0) shape[i] = from.size(static_cast<int64_t>(i - more));
  Placement::How how = how_of(from);
  if (auto* split = std::get_if<Split>(&how)) {
    if (from.size(split->dim) == 1) return std::nullopt;
    split->dim += static_cast<int64_t>(more);
  }
  return made(call, local_of(from).expand(local_shape(call, shape, how)), how, shape);
}

// A permutation of the dims: dim i of the result is dim order[i].
at::Tensor permute(const OpCall& call, const std::vector<int64_t>& order) {
  const at::Tensor& from = call.tensor(0);
  std::vector<int64_t> shape;
  for (const int64_t dim : order) shape.push_back(from.size(dim));
  Placement::How how = how_of(from);
  if (auto* split = std::get_if<Split>(&how)) split->dim = std::find(order.begin(), order.end(), split->dim) - order.begin();
  return made(call, local_of(from).permute(order), how, shape);
}

at::Tensor transpose(const OpCall& call, int64_t a, int64_t b) {
  std::vector<int64_t> order(static_cast<size_t>(call.tensor(0).dim()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  return permute(call, order);
}

Rearranged slice(const OpCall& call) {
  const at::Tensor& from = call.tensor(0);
  const int64_t dim = wrapped(call.arguments[1].toInt(), from.dim()), size = from.size(dim), step = call.arguments[4].toInt();
  const auto bound = [&](const c10::IValue& value, int64_t otherwise) {
    if (value.isNone()) return otherwise;
    const int64_t at = value.toInt();
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t begin = bound(call.arguments[2], 0), end = std::max(begin, bound(call.arguments[3], size));
  Placement::How how = how_of(from);
  std::vector<int64_t> shape = from.sizes().vec();
  const auto* split = std::get_if<Split>(&how);
  if (!split || split->dim != dim) {
    shape[static_cast<size_t>(dim)] = (end - begin + step - 1) / step;
    return made(call, local_of(from).slice(dim, begin, end, step), how, shape);
  }
  if (step != 1) return std::nullopt;
  shape[static_cast<size_t>(dim)] = end - begin;
  const SlicedSplit part = sliced(*split, begin, end, call.axis->rank());
  return made(call, local_of(from).narrow(dim, part.local.begin, part.local.length()), canonical(part.split, end - begin, call.ranks()),
              shape);
}

Rearranged select(const OpCall& call) {
  const at::Tensor& from = call.tensor(0);
  const int64_t dim = wrapped(call.arguments[1].toInt(), from.dim());
  Placement::How how = how_of(from);
  if (auto* split = std::get_if<Split>(&how)) {
    if (split->dim == dim) return std::nullopt;
    if (split->dim > dim) --split->dim;
  }
  std::vector<int64_t> shape = from.sizes().vec();
  shape.erase(shape.begin() + dim);
  return made(call, local_of(from).select(dim, call.arguments[2].toInt()), how, shape);
}

// Several tensors along a dim: all in the placement of the first that is split.
Rearranged cat(const OpCall& call) {
  const std::vector<at::Tensor> tensors = call.arguments[0].toTensorVector();
  const int64_t dims = tensors.front().dim(), dim = wrapped(call.arguments[1].toInt(), dims);
  std::vector<Split> splits;
  std::vector<int64_t> sizes, shape = tensors.front().sizes().vec();
  shape[static_cast<size_t>(dim)] = 0;
  for (const at::Tensor& one : tensors) {
    const Placement::How how = how_of(one);
    const auto* split = std::get_if<Split>(&how);
    if (!split || one.dim() != dims) return std::nullopt;
    splits.push_back(*split);
    sizes.push_back(one.size(dim));
    shape[static_cast<size_t>(dim)] += one.size(dim);
  }
  const bool along = splits.front().dim == dim;
  for (const Split& one : splits)
    if (one.dim != splits.front().dim || (!along && one != splits.front())) return std::nullopt;
  std::vector<at::Tensor> locals;
  for (const at::Tensor& one : tensors) locals.push_back(local_of(one));
  return made(call, at::cat(locals, dim), along ? concatenated(splits, sizes) : splits.front(), shape);
}

// Rows of a table of which each rank has some: zeros for those of other ranks, so the result is a partial sum.
Rearranged look_up(const OpCall& call) {
  const at::Tensor &table = call.tensor(0), &index = call.tensor(2);
  const Placement::How how = how_of(table);
  const auto* split = std::get_if<Split>(&how);
  const bool sends_less = static_cast<double>(index.numel()) < static_cast<double>(table.size(0));
  if (!split || split->dim != 0 || wrapped(call.arguments[1].toInt(), table.dim()) != 0 || !sends_less) return std::nullopt;
  const std::vector<Interval>& mine = split->pieces[static_cast<size_t>(call.axis->rank())];
  if (std::any_of(split->pieces.begin(), split->pieces.end(), [](const auto& held) { return held.size() > 1; })) return std::nullopt;
  std::vector<int64_t> shape = table.sizes().vec();
  shape[0] = index.numel();
  const at::Tensor ids = brought(call, index, Replicate{}), local = local_of(table);
  if (mine.empty()) return made(call, at::zeros(shape, local.options()), Partial{}, shape);
  const at::Tensor elsewhere = ids.lt(mine[0].begin).logical_or(ids.ge(mine[0].end));
  at::Tensor rows = local.index_select(0, (ids - mine[0].begin).masked_fill(elsewhere, 0));
  std::vector<int64_t> ones(shape.size(), 1);
  ones[0] = shape[0];
  return made(call, rows.masked_fill(elsewhere.view(ones), 0), Partial{}, shape);
}

// A new tensor like this one: where that is split, so is the new one.
at::Tensor new_like(const OpCall& call) {
  const at::Tensor& like = call.tensor(0);
  const Placement::How how = is_partial(how_of(like)) ? Placement::How(Replicate{}) : how_of(like);
  Values arguments = call.arguments;
  arguments[0] = local_of(like);
  return made(call, run_for_tensor(call, arguments), how, like.sizes().vec());
}

// A new tensor of a given shape with the options of this one.
at::Tensor new_of_shape(const OpCall& call) {
  Values arguments = call.arguments;
  arguments[0] = local_of(call.tensor(0));
  return run_for_tensor(call, arguments);
}

Rearranged squeeze(const OpCall& call, std::vector<int64_t> dims) {
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < call.tensor(0).dim(); ++i)
    if (call.tensor(0).size(i) != 1 || std::find(dims.begin(), dims.end(), i) == dims.end()) shape.push_back(call.tensor(0).size(i));
  return view_as(call, shape);
}

Rearranged unsqueeze(const OpCall& call) {
  std::vector<int64_t> shape = call.tensor(0).sizes().vec();
  shape.insert(shape.begin() + wrapped(call.arguments[1].toInt(), call.tensor(0).dim() + 1), 1);
  return view_as(call, shape);
}

// addmm(c, a, b) with c + a b; with other factors there is no rule.
Rearranged sum_with_product(const OpCall& call) {
  if (call.arguments[3].toScalar().toDouble() != 1 || call.arguments[4].toScalar().toDouble() != 1) return std::nullopt;
  return call.tensor(0) + at::mm(call.tensor(1), call.tensor(2));
}

std::vector<int64_t> wrapped_dims(const OpCall& call, std::vector<int64_t> dims) {
  for (int64_t& dim : dims) dim = wrapped(dim, call.tensor(0).dim());
  return dims;
}

using RearrangeRules = std::map<std::string, std::function<Rearranged(const OpCall&)>>;

const RearrangeRules& rearrange_rules() {
  static const RearrangeRules rules = [] {
    RearrangeRules all;
    all["view"] = all["_unsafe_view"] = all["reshape"] = [](const OpCall& call) { return view_as(call, call.arguments[1].toIntVector()); };
    all["unsqueeze"] = unsqueeze;
    all["squeeze.dim"] = [](const OpCall& call) { return squeeze(call, wrapped_dims(call, {call.arguments[1].toInt()})); };
    all["squeeze.dims"] = [](const OpCall& call) { return squeeze(call, wrapped_dims(call, call.arguments[1].toIntVector())); };
    all["expand"] = expand;
    all["permute"] = [](const OpCall& call) -> Rearranged { return permute(call, wrapped_dims(call, call.arguments[1].toIntVector())); };
    all["transpose.int"] = [](const OpCall& call) -> Rearranged {
      const std::vector<int64_t> dims = wrapped_dims(call, {call.arguments[1].toInt(), call.arguments[2].toInt()});
      return transpose(call, dims[0], dims[1]);
    };
    all["t"] = [](const OpCall& call) -> Rearranged { return transpose(call, 0, call.tensor(0).dim() - 1); };
    all["slice.Tensor"] = slice;
    all["select.int"] = select;
    all["cat"] = cat;
    all["index_select"] = look_up;
    all["addmm"] = sum_with_product;
    for (const char* name : {"zeros_like", "ones_like", "empty_like", "full_like"})
      all[name] = [](const OpCall& call) -> Rearranged { return new_like(call); };
    for (const char* name : {"new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"})
      all[name] = [](const OpCall& call) -> Rearranged { return new_of_shape(call); };
    return all;
  }();
  return rules;
}

}  // namespace

std::optional<at::Tensor> rearranged(const OpCall& call) {
  const auto rule = rearrange_rules().find(call.name);
  return rule == rearrange_rules().end() ? std::nullopt : rule->second(call);
}

}  // namespace cairn::mesh::dispatch
