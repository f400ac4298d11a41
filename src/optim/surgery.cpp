#include "optim/surgery.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {

Rearrangement permutation(std::string tensor, int64_t dim, std::vector<int64_t> order) {
  return {.tensors = {std::move(tensor)}, .dim = dim, .from = std::move(order)};
}

Rearrangement swap_rows(std::string first, int64_t first_size, int64_t a, std::string second, int64_t second_size, int64_t b, int64_t dim) {
  Rearrangement change{.tensors = {std::move(first), std::move(second)}, .dim = dim, .from = {}};
  change.from.resize(static_cast<size_t>(first_size + second_size));
  std::iota(change.from.begin(), change.from.end(), 0);
  std::swap(change.from[static_cast<size_t>(a)], change.from[static_cast<size_t>(first_size + b)]);
  return change;
}

Rearrangement insertion(std::string tensor, int64_t dim, int64_t size, int64_t at, int64_t count) {
  Rearrangement change{.tensors = {std::move(tensor)}, .dim = dim, .from = {}};
  for (int64_t i = 0; i < size; ++i) change.from.push_back(i < at ? i : i < at + count ? kNewRow : i - count);
  return change;
}

Rearrangement deletion(std::string tensor, int64_t dim, int64_t size, std::vector<int64_t> rows) {
  Rearrangement change{.tensors = {std::move(tensor)}, .dim = dim, .from = {}};
  for (int64_t i = 0; i < size; ++i)
    if (std::find(rows.begin(), rows.end(), i) == rows.end()) change.from.push_back(i);
  change.from.resize(static_cast<size_t>(size), kNewRow);
  return change;
}

std::vector<at::Tensor> rearranged(const Rearrangement& change, const std::vector<at::Tensor>& whole) {
  CAIRN_CHECK(whole.size() == change.tensors.size() && !whole.empty(), "{} tensors for a change of {}", whole.size(),
              change.tensors.size());
  int64_t rows = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<int64_t> shape = whole[i].sizes().vec(), first = whole[0].sizes().vec();
    CAIRN_CHECK(change.dim < whole[i].dim(), "{} has no dim {}", change.tensors[i], change.dim);
    rows += whole[i].size(change.dim);
    if (shape.size() == first.size()) shape[static_cast<size_t>(change.dim)] = first[static_cast<size_t>(change.dim)];
    CAIRN_CHECK(shape == first, "{} and {} cannot be joined along dim {}", change.tensors[0], change.tensors[i], change.dim);
  }
  CAIRN_CHECK(std::ssize(change.from) == rows, "{} sources for {} rows of {}", change.from.size(), rows, change.tensors[0]);
  std::vector<int64_t> sources;
  std::vector<int64_t> fresh;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t from = change.from[static_cast<size_t>(i)];
    CAIRN_CHECK(from == kNewRow || (from >= 0 && from < rows), "row {} of {} comes from row {}", i, change.tensors[0], from);
    if (from == kNewRow) fresh.push_back(i);
    sources.push_back(std::max<int64_t>(from, 0));
  }
  const auto indices = [&](std::vector<int64_t>& values) {
    return at::from_blob(values.data(), {std::ssize(values)}, at::TensorOptions().dtype(at::kLong)).clone().to(whole[0].device());
  };
  const at::Tensor joined = at::cat(whole, change.dim).index_select(change.dim, indices(sources));
  if (!fresh.empty()) joined.index_fill_(change.dim, indices(fresh), 0);
  std::vector<at::Tensor> result;
  int64_t next = 0;
  for (const at::Tensor& one : whole) {
    result.push_back(joined.narrow(change.dim, next, one.size(change.dim)).contiguous());
    next += one.size(change.dim);
  }
  return result;
}

}  // namespace cairn::optim
