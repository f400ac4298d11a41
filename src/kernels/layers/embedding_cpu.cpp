// Embedding lookup on the CPU, and its gradient: threads own columns, so each table row is summed in the order of the ids.
#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tensor.h"
#include "kernels/layers/embedding_cuda.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kGrainFloats = 32768;
constexpr int64_t kColumns = 64;

bool fits(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  return all_cpu_float(table, rows) && ids.device().is_cpu() && ids.scalar_type() == at::kLong && ids.is_contiguous();
}

void check(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  CAIRN_CHECK(table.dim() == 2 && rows.numel() == ids.numel() * table.size(1), "{} ids into a table of {} for rows of {}", ids.numel(),
              c10::str(table.sizes()), c10::str(rows.sizes()));
}

void check_ids(const at::Tensor& ids, int64_t vocab) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i)
    if (id[i] < 0 || id[i] >= vocab) base::fail_input("token id {} at place {} is outside the vocabulary of {}", id[i], i, vocab);
}

}  // namespace

void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids) {
  check(table, ids, y);
  if (embedding_on_cuda(y, table, ids)) return;
  if (!fits(table, ids, y)) return reference::embedding(y, table, ids);
  check_ids(ids, table.size(0));
  const int64_t embed = table.size(1);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const float* from = table.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  parallel_rows(ids.numel(), kGrainFloats / std::max<int64_t>(1, embed), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * embed, from + id[i] * embed, static_cast<size_t>(embed) * sizeof(float));
  });
}

void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy) {
  check(dtable, ids, dy);
  if (embedding_backward_on_cuda(dtable, ids, dy)) return;
  if (is_half_precision(dy) && !is_half_precision(dtable)) return embedding_backward(dtable, ids, widened(dy));
  if (!fits(dtable, ids, dy)) return reference::embedding_backward(dtable, ids, dy);
  check_ids(ids, dtable.size(0));
  const int64_t embed = dtable.size(1), count = ids.numel();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const float* from = dy.const_data_ptr<float>();
  float* to = dtable.mutable_data_ptr<float>();
  parallel_rows(embed, kColumns, [=](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < count; ++i) {
      float* row = to + id[i] * embed;
      const float* gradient = from + i * embed;
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) row[d] += gradient[d];
    }
  });
}

}  // namespace cairn::kernels
