#include "train/spectral/unit_vectors.h"

#include <algorithm>
#include <map>

#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "parallel/state/parameter_store.h"
#include "train/job.h"

namespace cairn::train {
namespace {

constexpr double kTiny = 1e-30;

// Calls act(row, its elements in the part) for the rows that a flat range of a row-major matrix touches.
template <typename Act>
void for_each_row(const at::Tensor& flat, int64_t begin, int64_t width, const Act& act) {
  for (int64_t at = 0; at < flat.numel();) {
    const int64_t row = (begin + at) / width, n = std::min(flat.numel() - at, (row + 1) * width - begin - at);
    act(row, flat.narrow(0, at, n));
    at += n;
  }
}

bool is_whole_rows(const at::Tensor& flat, int64_t begin, int64_t width) { return begin % width == 0 && flat.numel() % width == 0; }

}  // namespace

UnitVectors::UnitVectors(Job& job, const std::vector<size_t>& matrices, const std::vector<size_t>& values)
    : options_(at::TensorOptions().dtype(at::kDouble).device(job.config.device)) {
  const parallel::ParameterStore& store = *job.engine.store;
  std::map<size_t, int64_t> first_rows;
  for (const size_t one : matrices) {
    first_rows[one] = rows_;
    rows_ += job.engine.model->parameters()[one].shape[0];
  }
  for (const parallel::ParameterSlice& slice : store.pieces()) {
    if (!slice.gradient.defined()) continue;
    const parallel::ParameterShard& held = store.shard().parameters[slice.parameter];
    if (const auto found = first_rows.find(slice.parameter); found != first_rows.end())
      parts_.push_back({.flat = slice.value.view({-1}),
                        .begin = slice.elements.begin,
                        .width = held.local_shard.local_shape()[1],
                        .row = found->second,
                        .weight = 1.0 / static_cast<double>(held.copies.size())});
    if (std::find(values.begin(), values.end(), slice.parameter) != values.end()) values_.push_back(slice.value);
  }
  const parallel::Plan& plan = job.config.plan;
  std::vector<std::string> axes = parallel::sharding_axes(plan);
  axes.emplace_back("tp");
  comm::World& world = job.engine.step_group->world();
  const std::vector<int> ranks = plan.mesh.peers_along(world.rank(), axes);
  if (ranks.size() > 1) group_ = &world.group(ranks, "unit vectors");
}

void UnitVectors::project() const {
  for (const at::Tensor& one : values_) one.clamp_min_(0);
  if (!group_) {
    for (const Part& part : parts_) {
      const at::Tensor rows = part.flat.view({-1, part.width});
      rows.div_(rows.to(at::kDouble).square().sum(1, /*keepdim=*/true).sqrt().clamp_min(kTiny).to(rows.scalar_type()));
    }
    return;
  }
  const at::Tensor squares = at::zeros({rows_}, options_);
  for (const Part& part : parts_) {
    if (is_whole_rows(part.flat, part.begin, part.width)) {
      const at::Tensor rows = part.flat.view({-1, part.width});
      squares.narrow(0, part.row + part.begin / part.width, rows.size(0)).add_(rows.to(at::kDouble).square().sum(1), part.weight);
      continue;
    }
    for_each_row(part.flat, part.begin, part.width, [&](int64_t row, const at::Tensor& elements) {
      squares.select(0, part.row + row).add_(elements.to(at::kDouble).square().sum(), part.weight);
    });
  }
  group_->all_reduce(squares, comm::Reduce::sum, {comm::Purpose::parameter, "lengths of singular vectors"}).wait();
  const at::Tensor lengths = squares.sqrt().clamp_min(kTiny);
  for (const Part& part : parts_) {
    if (is_whole_rows(part.flat, part.begin, part.width)) {
      const at::Tensor rows = part.flat.view({-1, part.width});
      rows.div_(lengths.narrow(0, part.row + part.begin / part.width, rows.size(0)).unsqueeze(1).to(rows.scalar_type()));
      continue;
    }
    for_each_row(part.flat, part.begin, part.width, [&](int64_t row, const at::Tensor& elements) {
      elements.div_(lengths.select(0, part.row + row).to(elements.scalar_type()));
    });
  }
}

}  // namespace cairn::train
