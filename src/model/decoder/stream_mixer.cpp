#include "model/decoder/stream_mixer.h"

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

// [batch, length, embed, streams]
at::Tensor by_token(const at::Tensor& x, int64_t streams) {
  CAIRN_CHECK(x.dim() == 3 && x.size(0) % streams == 0, "{} in {} streams", c10::str(x.sizes()), streams);
  return x.view({streams, x.size(0) / streams, x.size(1), x.size(2)}).permute({1, 2, 3, 0});
}

}  // namespace

at::Tensor stream_weights(const at::Tensor& x, const MixerWeights& weights, double smoothing) {
  const int64_t streams = weights.w2.size(0);
  const at::Tensor z = by_token(x, streams).flatten(2);
  const at::Tensor scores = at::linear(at::silu(at::linear(z, weights.w1, weights.b1)), weights.w2, weights.b2);
  const at::Tensor wide = scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
  return wide.softmax(-1) * (1 - smoothing) + smoothing / static_cast<double>(streams);
}

at::Tensor mix_streams(const at::Tensor& x, const MixerWeights& weights, double smoothing) {
  const at::Tensor w = stream_weights(x, weights, smoothing);
  return (by_token(x, weights.w2.size(0)) * w.unsqueeze(2).to(x.scalar_type())).sum(3);
}

}  // namespace cairn::model
