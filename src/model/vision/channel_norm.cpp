// With xhat = (x - mean) rstd over all m rows and z = dy where y > 0 (dy without ReLU):
//
//   y = max(0, gain xhat + shift)      dx = gain rstd (z - sum(z)/m - xhat sum(z xhat)/m)      dgain = sum(z xhat)      dshift = sum(z)
#include "model/vision/channel_norm.h"

#include <array>

#include <ATen/core/IListRef.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/supernet/subnet.h"

namespace cairn::model {
namespace {

constexpr double kChannelNormEps = 1e-5;

at::Tensor first_channels(const at::Tensor& by_channel, int64_t count) {
  return by_channel.size(0) == count ? by_channel : by_channel.narrow(0, 0, count);
}

}  // namespace

at::Tensor ChannelNorm::forward(const at::Tensor& x, Saved* keep, const Call& call) const {
  CAIRN_CHECK(call.norm_samples == 0, "{}: groups of {} samples", name, call.norm_samples);
  const int64_t count = x.size(1);
  const at::Tensor weight = first_channels(call.weights.get(gain), count), bias = first_channels(call.weights.get(shift), count);
  if (!uses_batch_statistics(call)) {
    const at::Tensor mean = first_channels(call.buffers.at(name + ".running_mean"), count);
    const at::Tensor variance = first_channels(call.buffers.at(name + ".running_var"), count);
    at::Tensor y = std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance, false, 0, kChannelNormEps));
    return relu ? y.relu_() : y;
  }
  auto [y, mean, rstd] = at::native_batch_norm(x, weight, bias, {}, {}, true, 0, kChannelNormEps);
  if (!call.subnet || !call.needs.weights) {
    const at::Tensor wide = mean.to(at::kDouble);
    const at::Tensor squares = rstd.to(at::kDouble).square().reciprocal() - kChannelNormEps + wide.square();
    const auto values = static_cast<double>(x.size(0));
    add_pending(name, call, padded(wide * values, {channels}), padded(squares * values, {channels}), values);
  }
  if (relu) y.relu_();
  if (keep) {
    keep->put(name + ".x", x);
    if (relu) keep->put(name + ".y", y);
    keep->put(name + ".mean", mean);
    keep->put(name + ".rstd", rstd);
  }
  return y;
}

at::Tensor ChannelNorm::input_gradient(const at::Tensor& dy, Saved& saved, const Call& call) const {
  const at::Tensor x = saved.take(name + ".x");
  const at::Tensor z = relu ? at::threshold_backward(dy, saved.take(name + ".y"), 0) : dy;
  const at::Tensor weight = first_channels(call.weights.get(gain), x.size(1));
  auto [dx, dgain, dshift] =
      at::native_batch_norm_backward(z.contiguous(), x, weight, {}, {}, saved.take(name + ".mean"), saved.take(name + ".rstd"), true,
                                     kChannelNormEps, std::array<bool, 3>{true, true, true});
  saved.put(name + ".dgain", dgain);
  saved.put(name + ".dshift", dshift);
  return dx;
}

void ChannelNorm::weight_gradient(Saved& saved, mesh::Gradients& into) const {
  into.add(shift, padded(saved.take(name + ".dshift"), {channels}));
  into.add(gain, padded(saved.take(name + ".dgain"), {channels}));
}

at::Tensor ChannelNorm::plain(const at::Tensor& x, const Call& call) const {
  const at::Tensor weight = first_channels(call.weights.get(gain), x.size(1)), bias = first_channels(call.weights.get(shift), x.size(1));
  at::Tensor mean, variance;
  if (uses_batch_statistics(call)) {
    mean = x.mean(0);
    variance = (x - mean).square().mean(0);
  } else {
    mean = first_channels(call.buffers.at(name + ".running_mean"), x.size(1));
    variance = first_channels(call.buffers.at(name + ".running_var"), x.size(1));
  }
  const at::Tensor y = (x - mean) * (at::rsqrt(variance + kChannelNormEps) * weight) + bias;
  return relu ? y.clamp_min(0) : y;
}

}  // namespace cairn::model
