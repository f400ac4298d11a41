#include "sync/one_byte/sharded_direction.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "kernels/aten.h"
#include "parallel/layout/model_shard.h"

namespace cairn::sync {
namespace {

int64_t elements_in(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A part of the local tensor that is contiguous in the whole one.
struct ContiguousRun {
  int64_t local = 0, whole = 0, count = 0;  // first element here and there
};

// The runs of a local tensor, in order; nothing: dims other than the first are sharded.
std::optional<std::vector<ContiguousRun>> contiguous_runs(const ShardedParameter& parameter) {
  const auto& dims = parameter.shard.dims;
  if (dims.empty()) return std::vector<ContiguousRun>{{0, 0, elements_in(parameter.shape)}};
  int64_t row = 1;
  for (size_t d = 1; d < dims.size(); ++d) {
    if (dims[d] != std::vector<mesh::Interval>{{0, parameter.shape[d]}}) return std::nullopt;
    row *= parameter.shape[d];
  }
  std::vector<ContiguousRun> runs;
  int64_t local = 0;
  for (const mesh::Interval& rows : dims[0]) {
    runs.push_back({local, rows.begin * row, rows.length() * row});
    local += rows.length() * row;
  }
  return runs;
}

// Calls `call` with the slices of [begin, begin + count) of the local tensor that are contiguous in the whole tensor: offset from `begin`,
// count, index of the first element in the whole tensor. False: there are no such runs.
bool over_runs(const ShardedParameter& parameter, int64_t begin, int64_t count,
               const std::function<void(int64_t offset, int64_t count, int64_t first)>& call) {
  const std::optional<std::vector<ContiguousRun>> runs = contiguous_runs(parameter);
  if (!runs) return false;
  for (const ContiguousRun& run : *runs) {
    const int64_t from = std::max(begin, run.local), to = std::min(begin + count, run.local + run.count);
    if (from < to) call(from - begin, to - from, run.whole + from - run.local);
  }
  return true;
}

// The slice of `whole`, which has the parameter's elements.
at::Tensor slice_of(const at::Tensor& whole, const ShardedParameter& parameter, int64_t begin, int64_t count) {
  return parallel::cut_out(whole.view(parameter.shape), parameter.shard).reshape({-1}).narrow(0, begin, count);
}

}  // namespace

void perturb_shard(const at::Tensor& out, const at::Tensor& weights, const ShardedParameter& parameter, int64_t begin,
                   const kernels::Direction& direction, kernels::Noise noise) {
  if (over_runs(parameter, begin, weights.numel(), [&](int64_t offset, int64_t count, int64_t first) {
        kernels::perturb(out.narrow(0, offset, count), weights.narrow(0, offset, count), direction, first, noise);
      }))
    return;
  const at::Tensor moves = at::zeros({elements_in(parameter.shape)}, weights.options().dtype(at::kFloat));
  kernels::perturb(moves, moves, direction, 0, noise);
  out.copy_(weights.to(at::kFloat).add(slice_of(moves, parameter, begin, weights.numel())));
}

void replay_shard(const at::Tensor& weights, const ShardedParameter& parameter, int64_t begin,
                  std::span<const kernels::Direction> directions, float rate, float keep, kernels::Noise noise) {
  if (over_runs(parameter, begin, weights.numel(), [&](int64_t offset, int64_t count, int64_t first) {
        kernels::replay(weights.narrow(0, offset, count), directions, first, rate, keep, noise);
      }))
    return;
  const at::Tensor moves = at::zeros({elements_in(parameter.shape)}, weights.options().dtype(at::kFloat));
  kernels::replay(moves, directions, 0, rate, 1, noise);
  // Rounded after the product and after the sum, as the kernel does it.
  weights.copy_(weights.to(at::kFloat).mul(keep).add_(slice_of(moves, parameter, begin, weights.numel())));
}

}  // namespace cairn::sync
