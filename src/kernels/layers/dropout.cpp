#include "kernels/dropout.h"

#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::kernels {

void dropout(const at::Tensor& x, const at::Tensor& keys, const base::Random& random, double rate, int64_t first_column) {
  CAIRN_CHECK(x.dim() == 2 && keys.numel() == x.size(0) && rate >= 0 && rate < 1, "dropout of {} rows with {} keys at rate {}", x.size(0),
              keys.numel(), rate);
  const int64_t width = x.size(1);
  const at::Tensor host = keys.cpu().contiguous(), mask = at::empty(x.sizes(), at::kFloat);
  const int64_t* key = host.const_data_ptr<int64_t>();
  float* factors = mask.mutable_data_ptr<float>();
  const auto kept = static_cast<float>(1 / (1 - rate)), limit = static_cast<float>(rate);
  parallel_rows(x.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = factors + row * width;
      random.for_index(static_cast<uint64_t>(key[row])).fill_uniform({to, static_cast<size_t>(width)}, static_cast<uint64_t>(first_column));
      for (int64_t c = 0; c < width; ++c) to[c] = to[c] < limit ? 0 : kept;
    }
  });
  x.mul_(x.device().is_cpu() ? mask : mask.to(x.device()));
}

}  // namespace cairn::kernels
