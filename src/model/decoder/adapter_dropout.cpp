#include "model/decoder/adapter_dropout.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/dropout.h"

namespace cairn::model {

at::Tensor AdapterDropout::of(const at::Tensor& x, int64_t first_row, const std::vector<mesh::Interval>& columns, const Call& call) const {
  if (!is_on(call)) return x;
  at::Tensor masked = x.clone(at::MemoryFormat::Contiguous);
  apply(masked, first_row, columns, call);
  return masked;
}

void AdapterDropout::apply(const at::Tensor& x, int64_t first_row, const std::vector<mesh::Interval>& columns, const Call& call) const {
  CAIRN_CHECK(call.token_keys && first_row + x.size(0) <= call.token_keys->numel(), "{}: dropout of rows {} to {} needs their token keys",
              name, first_row, first_row + x.size(0));
  const at::Tensor keys = call.token_keys->reshape({-1}).narrow(0, first_row, x.size(0));
  const base::Random random = call.random.for_purpose("adapter.dropout").for_name(name);
  int64_t at = 0;
  for (const mesh::Interval& piece : columns) {
    kernels::dropout(x.narrow(1, at, piece.length()), keys, random, rate, piece.begin);
    at += piece.length();
  }
}

}  // namespace cairn::model
