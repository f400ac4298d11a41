#include "data/search/device_scores.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::data {
namespace {

constexpr int64_t kDeviceTileBytes = int64_t{256} << 20, kDeviceTileRows = 16384, kReadRows = 256;

}  // namespace

int64_t device_tile_rows(int64_t dim) {
  const int64_t fitting = kDeviceTileBytes / (4 * std::max<int64_t>(dim, 1)) / kReadRows * kReadRows;
  return std::clamp(fitting, kReadRows, kDeviceTileRows);
}

at::Tensor read_in_parallel(const RowSource& rows, int64_t first, int64_t count) {
  const at::Tensor all = at::empty({count, rows.dim()});
  kernels::parallel_rows(count, kReadRows, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    const at::Tensor part = rows.read(first + begin, end - begin);
    std::copy_n(part.const_data_ptr<float>(), part.numel(), all.mutable_data_ptr<float>() + begin * rows.dim());
  });
  return all;
}

at::Tensor full_product(const at::Tensor& a, const at::Tensor& b) {
  const at::NoTF32Guard full_precision;
  return at::mm(a, b.t());
}

ReachedColumns columns_reaching(const at::Tensor& scores, const at::Tensor& bounds) {
  const at::Tensor places = (scores >= bounds.unsqueeze(1)).nonzero().cpu().contiguous();  // [reached, 2], by row, then by column
  const auto* place = places.const_data_ptr<int64_t>();
  ReachedColumns reached;
  reached.begins.assign(static_cast<size_t>(scores.size(0)) + 1, 0);
  reached.columns.resize(static_cast<size_t>(places.size(0)));
  for (size_t i = 0; i < reached.columns.size(); ++i) {
    ++reached.begins[static_cast<size_t>(place[2 * i]) + 1];
    reached.columns[i] = place[2 * i + 1];
  }
  for (size_t row = 1; row < reached.begins.size(); ++row) reached.begins[row] += reached.begins[row - 1];
  return reached;
}

at::Tensor numbers_beside(const std::vector<float>& numbers, const at::Tensor& other) {
  return at::tensor(at::ArrayRef<float>(numbers), at::kFloat).to(other.device());
}

}  // namespace cairn::data
