// The mixer of parallel streams (ParScale, arXiv:2505.10475). With x_p the last hidden state of stream p at a token, z their concatenation:
//   w = softmax(W2 silu(W1 z + b1) + b2)  in fp32,   w <- (1 - eps) w + eps / P,   y = sum_p w_p x_p
// z has the streams' numbers innermost (element d of stream p at d P + p), as published weights do.
// The smoothing keeps every stream trained.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::model {

struct MixerWeights {
  at::Tensor w1, b1;  // [embed, streams * embed], [embed]
  at::Tensor w2, b2;  // [streams, embed], [streams]
};

// x [streams * batch, length, embed], stream by stream: [batch, length, embed]. In differentiable ATen operations.
at::Tensor mix_streams(const at::Tensor& x, const MixerWeights& weights, double smoothing);
// The weights w of each token and stream, [batch, length, streams], fp32 or double.
at::Tensor stream_weights(const at::Tensor& x, const MixerWeights& weights, double smoothing);

}  // namespace cairn::model
