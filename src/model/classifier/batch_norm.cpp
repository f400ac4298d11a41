#include "model/classifier/batch_norm.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr std::string_view kPending = ".pending";

}  // namespace

void add_batch_norm_buffers(Buffers& buffers, const std::string& name, int64_t channels, const at::TensorOptions& options) {
  buffers[name + ".running_mean"] = at::zeros({channels}, options);
  buffers[name + ".running_var"] = at::ones({channels}, options);
  buffers[name + std::string(kPending)] = at::zeros({2 * channels + 1}, options.dtype(at::kDouble));
}

NormGroups norm_groups(int64_t samples, const Call& call) {
  const int64_t together = call.norm_samples;
  if (together == 0 || together == samples) return {};
  if (samples > together) {
    CAIRN_CHECK(samples % together == 0, "{} samples of a pass in groups of {}", samples, together);
    return {.groups = samples / together};
  }
  comm::Group* const over = call.axes.find("samples");
  CAIRN_CHECK(over && together % samples == 0 && over->size() % (together / samples) == 0, "{} samples of a rank for groups of {}", samples,
              together);
  return {.ranks = static_cast<int>(together / samples), .over = over};
}

bool uses_batch_statistics(const Call& call) { return call.needs.weights || call.options.batch_statistics; }

void add_pending(const std::string& name, const Call& call, const at::Tensor& sums, const at::Tensor& squares, double count) {
  at::Tensor& pending = call.buffers.at(name + std::string(kPending));
  // Not in place: others may have the old value.
  pending = pending + at::cat(at::TensorList{sums, squares, at::full({1}, count, sums.options())});
}

at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, const std::string& name, const Call& call,
                      double eps) {
  const NormGroups groups = norm_groups(x.size(0), call);
  if (uses_batch_statistics(call) && groups.groups > 1) {
    std::vector<at::Tensor> parts;
    Call alone = call;
    alone.norm_samples = 0;
    for (const at::Tensor& part : x.chunk(groups.groups)) parts.push_back(batch_norm(part, gain, shift, name, alone, eps));
    return at::cat(parts);
  }
  CAIRN_CHECK(groups.ranks == 1, "{}: groups of {} ranks need a block of their own", name, groups.ranks);
  std::vector<int64_t> others{0}, shape(static_cast<size_t>(x.dim()), 1);
  for (int64_t dim = 2; dim < x.dim(); ++dim) others.push_back(dim);
  shape[1] = x.size(1);
  const auto wide = [&](const at::Tensor& by_channel) { return by_channel.view(shape); };
  at::Tensor mean, variance;
  if (uses_batch_statistics(call)) {
    mean = x.mean(others);
    variance = (x - wide(mean)).square().mean(others);
    at::NoGradGuard no_grad;
    const at::Tensor seen = x.detach().to(at::kDouble);
    add_pending(name, call, seen.sum(others), seen.square().sum(others), static_cast<double>(x.numel() / x.size(1)));
  } else {
    mean = call.buffers.at(name + ".running_mean");
    variance = call.buffers.at(name + ".running_var");
  }
  return (x - wide(mean)) * wide(at::rsqrt(variance + eps) * gain) + wide(shift);
}

void commit_batch_norms(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum, double momentum) {
  for (auto& [key, pending] : buffers) {
    if (!key.ends_with(kPending)) continue;
    const std::string name = key.substr(0, key.size() - kPending.size());
    const at::Tensor total = pending.clone();
    pending = at::zeros_like(pending);
    if (skipped) continue;
    sum(total);
    const int64_t channels = (total.numel() - 1) / 2;
    const at::Tensor count = total.narrow(0, 2 * channels, 1), mean = total.narrow(0, 0, channels) / count;
    const at::Tensor variance = total.narrow(0, channels, channels) / count - mean.square();
    for (const auto& [ending, value] : {std::pair{".running_mean", mean}, std::pair{".running_var", variance}})
      buffers.at(name + ending).mul_(1 - momentum).add_(value, momentum);
  }
}

mesh::NamedTensors running_buffers(const Buffers& buffers) {
  mesh::NamedTensors running;
  for (const auto& [name, tensor] : buffers)
    if (name.ends_with(".running_mean") || name.ends_with(".running_var")) running.push_back({name, tensor});
  return running;
}

}  // namespace cairn::model
