// Scores of search on a device (a GPU). They only propose rows: every proposal is scored again on the CPU in double precision
// (scalar_product), so results equal those of a CPU bitwise.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/search/rows.h"

namespace cairn::data {

// Rows of one tile on a device: enough to keep it busy, about 256 MB at most. A multiple of 256.
int64_t device_tile_rows(int64_t dim);

// Rows first .. first + count - 1 on the CPU, read by several threads.
at::Tensor read_in_parallel(const RowSource& rows, int64_t first, int64_t count);

// a b^T in full fp32: no TF32, whatever the process allows, since error bounds of search hold for fp32 alone.
at::Tensor full_product(const at::Tensor& a, const at::Tensor& b);

// The columns of each row of scores that reach its bound, ascending: columns[begins[row]] .. columns[begins[row + 1] - 1].
struct ReachedColumns {
  std::vector<int64_t> begins, columns;
  std::span<const int64_t> of_row(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    return {columns.data() + begins[at], columns.data() + begins[at + 1]};
  }
};
ReachedColumns columns_reaching(const at::Tensor& scores, const at::Tensor& bounds);  // [rows, columns], [rows], of one device

// One number for each row as a tensor on the device of another.
at::Tensor numbers_beside(const std::vector<float>& numbers, const at::Tensor& other);

}  // namespace cairn::data
