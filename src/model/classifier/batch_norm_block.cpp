// y = max(0, gain (x - mean) rstd + shift), with mean and rstd over the m values of a channel in a group. With z the gradient of the
// argument of max and xhat = (x - mean) rstd:
//
//   d shift = sum(z)      d gain = sum(z xhat)      dx = gain rstd (z - sum(z)/m - xhat sum(z xhat)/m)
//
// where the sums of dx run over the group. Where it lies on several ranks, each writes its sums into the row of its group, and a sum over
// all ranks gives every row to everybody.
#include "model/classifier/batch_norm_block.h"

#include <array>
#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "comm/group.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"

namespace cairn::model {
namespace {

constexpr double kNormEps = 1e-5;

// The sum over the ranks of this rank's group. Every rank of `over` calls it.
at::Tensor sum_over_ranks(const at::Tensor& own, const NormGroups& groups, const std::string& name) {
  const int64_t row = groups.over->rank() / groups.ranks;
  at::Tensor rows = at::zeros({groups.over->size() / groups.ranks, own.numel()}, own.options());
  rows[row].copy_(own);
  groups.over->all_reduce(rows, comm::Reduce::sum, {comm::Purpose::activation, name}).wait();
  return rows[row];
}

// A tensor by channel in the shape that broadcasts over x.
at::Tensor broadcast(const at::Tensor& by_channel, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return by_channel.view(shape);
}

class NormRelu final : public Block {
 public:
  explicit NormRelu(const BatchNormBlock& block) : block_(block) {
    card_ = {.name = block.name,
             .reads = {block.reads},
             .writes = {block.writes},
             .operations = {{.name = "batch_norm",
                             .parameters = {block.gain, block.shift},
                             .axes = {"channels"},
                             .saved_elements_per_token = 2.0 * static_cast<double>(block.values),
                             .width = block.channels}},
             .buffers = {block.name + ".running_mean", block.name + ".running_var", block.name + ".pending"}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(block_.reads).contiguous();
    const at::Tensor gain = call.weights.get(block_.gain), shift = call.weights.get(block_.shift);
    at::Tensor y, mean, rstd;
    if (!uses_batch_statistics(call)) {
      const auto running = [&](const char* ending) { return call.buffers.at(block_.name + ending); };
      y = std::get<0>(at::native_batch_norm(x, gain, shift, running(".running_mean"), running(".running_var"), false, 0, kNormEps));
    } else if (const NormGroups groups = norm_groups(x.size(0), call); groups.ranks > 1) {
      std::tie(y, mean, rstd) = over_ranks(x, gain, shift, groups, call);
    } else {
      std::tie(y, mean, rstd) = in_groups(x, gain, shift, groups.groups, call);
    }
    y.relu_();
    if (keep) {
      keep->put("x", x);
      keep->put("y", y);
      keep->put("mean", mean);
      keep->put("rstd", rstd);
    }
    values.put(block_.writes, std::move(y));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor x = saved.take("x"), mean = saved.take("mean"), rstd = saved.take("rstd");
    const at::Tensor z = at::threshold_backward(gradients.take(block_.writes).contiguous(), saved.take("y"), 0);
    const at::Tensor gain = call.weights.get(block_.gain);
    const NormGroups groups = norm_groups(x.size(0), call);
    at::Tensor dx, dgain, dshift;
    if (groups.ranks > 1)
      std::tie(dx, dgain, dshift) = back_over_ranks(z, x, gain, mean, rstd, groups);
    else
      std::tie(dx, dgain, dshift) = back_in_groups(z, x, gain, mean, rstd, groups.groups);
    if (call.needs.input) gradients.add(block_.reads, dx);
    saved.put("dgain", dgain);
    saved.put("dshift", dshift);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    into.add(block_.shift, saved.take("dshift"));
    into.add(block_.gain, saved.take("dgain"));
  }

  void plain(Values& values, const Call& call) const override {
    values.put(block_.writes, batch_norm(values.get(block_.reads), call.weights.get(block_.gain), call.weights.get(block_.shift),
                                         block_.name, call, kNormEps)
                                  .clamp_min(0));
  }

 private:
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

  // mean and rstd: [groups, channels].
  Three in_groups(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, int64_t groups, const Call& call) const {
    std::vector<at::Tensor> ys, means, rstds;
    for (const at::Tensor& part : x.chunk(groups)) {
      auto [y, mean, rstd] = at::native_batch_norm(part, gain, shift, {}, {}, true, 0, kNormEps);
      ys.push_back(std::move(y)), means.push_back(std::move(mean)), rstds.push_back(std::move(rstd));
    }
    const at::Tensor mean = at::stack(means), rstd = at::stack(rstds);
    const auto values = static_cast<double>(x.numel() / x.size(1)), of_group = values / static_cast<double>(groups);
    const at::Tensor means_double = mean.to(at::kDouble);
    const at::Tensor squares = rstd.to(at::kDouble).square().reciprocal() - kNormEps + means_double.square();
    add_pending(block_.name, call, means_double.sum(0) * of_group, squares.sum(0) * of_group, values);
    return {groups == 1 ? ys.front() : at::cat(ys), mean, rstd};
  }

  static Three back_in_groups(const at::Tensor& z, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean,
                              const at::Tensor& rstd, int64_t groups) {
    const std::vector<at::Tensor> zs = z.chunk(groups), xs = x.chunk(groups);
    std::vector<at::Tensor> dxs, dgains, dshifts;
    for (size_t g = 0; g < zs.size(); ++g) {
      const auto row = static_cast<int64_t>(g);
      auto [dx, dgain, dshift] = at::native_batch_norm_backward(zs[g], xs[g], gain, {}, {}, mean[row], rstd[row], true, kNormEps,
                                                                std::array<bool, 3>{true, true, true});
      dxs.push_back(std::move(dx)), dgains.push_back(std::move(dgain)), dshifts.push_back(std::move(dshift));
    }
    if (groups == 1) return {dxs.front(), dgains.front(), dshifts.front()};
    return {at::cat(dxs), at::stack(dgains).sum(0), at::stack(dshifts).sum(0)};
  }

  Three over_ranks(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, const NormGroups& groups, const Call& call) const {
    const std::vector<int64_t> others = all_but_channels(x);
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor sums = wide.sum(others), squares = wide.square().sum(others);
    const auto values = static_cast<double>(x.numel() / x.size(1));
    add_pending(block_.name, call, sums, squares, values);
    const at::Tensor all = sum_over_ranks(at::cat(at::TensorList{sums, squares}), groups, block_.name) / (values * groups.ranks);
    const at::Tensor mean = all.narrow(0, 0, x.size(1)), variance = all.narrow(0, x.size(1), x.size(1)) - mean.square();
    const at::Tensor mean_float = mean.to(x.scalar_type()), rstd = at::rsqrt(variance + kNormEps).to(x.scalar_type());
    at::Tensor y = (x - broadcast(mean_float, x)) * broadcast(rstd * gain, x) + broadcast(shift, x);
    return {std::move(y), mean_float, rstd};
  }

  Three back_over_ranks(const at::Tensor& z, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd,
                        const NormGroups& groups) const {
    const std::vector<int64_t> others = all_but_channels(x);
    const at::Tensor xhat = (x - broadcast(mean, x)) * broadcast(rstd, x);
    const at::Tensor dshift = z.sum(others), dgain = (z * xhat).sum(others);
    const double values = static_cast<double>(x.numel() / x.size(1)) * groups.ranks;
    const at::Tensor all = sum_over_ranks(at::cat(at::TensorList{dshift, dgain}), groups, block_.name) / values;
    const at::Tensor along_shift = broadcast(all.narrow(0, 0, x.size(1)), x),
                     along_gain = broadcast(all.narrow(0, x.size(1), x.size(1)), x);
    return {(z - along_shift - xhat * along_gain) * broadcast(gain * rstd, x), dgain, dshift};
  }

  static std::vector<int64_t> all_but_channels(const at::Tensor& x) {
    std::vector<int64_t> others{0};
    for (int64_t dim = 2; dim < x.dim(); ++dim) others.push_back(dim);
    return others;
  }

  BatchNormBlock block_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_batch_norm_block(const BatchNormBlock& block) { return std::make_unique<NormRelu>(block); }

}  // namespace cairn::model
