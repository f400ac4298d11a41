#include "train/steps/whole_batch.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/pass.h"

namespace cairn::train {
namespace {

// An objective of one pass, as a function.
class PassObjective final : public model::Objective {
 public:
  using Function = std::function<model::Losses(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients)>;
  explicit PassObjective(Function function) : function_(std::move(function)) {}

  Separates separates() const override { return Separates::nothing; }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double /*weight*/,
                         const mesh::Axes& /*axes*/) const override {
    return function_(outputs, batch, gradients);
  }

 private:
  Function function_;
};

model::Losses run(const parallel::Pass& like, const model::Objective& objective, bool gradients) {
  return parallel::execute({.model = like.model,
                            .at = like.at,
                            .buffers = like.buffers,
                            .axes = like.axes,
                            .batch = like.batch,
                            .objective = objective,
                            .into = gradients ? like.into : nullptr,
                            .weight = like.weight,
                            .random = like.random,
                            .trace = like.trace,
                            .memory = like.memory,
                            .context = like.context,
                            .options = like.options,
                            .recompute = gradients && like.recompute,
                            .progress = like.progress});
}

// The samples of all ranks of the group, in order.
struct Shares {
  comm::Group* group = nullptr;
  std::vector<int64_t> samples;  // by rank

  int64_t all() const { return std::accumulate(samples.begin(), samples.end(), int64_t{0}); }
  int rank() const { return group ? group->rank() : 0; }
  int64_t own() const { return samples[static_cast<size_t>(rank())]; }
  int64_t first() const { return std::accumulate(samples.begin(), samples.begin() + rank(), int64_t{0}); }

  at::Tensor gather(const at::Tensor& own_rows, std::string_view what) const {
    if (!group) return own_rows;
    const at::Tensor in = own_rows.contiguous();
    std::vector<int64_t> sizes = in.sizes().vec(), counts = samples;
    sizes[0] = all();
    const int64_t row = std::accumulate(sizes.begin() + 1, sizes.end(), int64_t{1}, std::multiplies<>());
    for (int64_t& count : counts) count *= row;
    const at::Tensor out = at::empty(sizes, in.options());
    group->all_gather(out, in, {comm::Purpose::activation, what}, std::move(counts)).wait();
    return out;
  }
};

Shares shares_of(comm::Group* group, int64_t own) {
  Shares shares{.group = group, .samples = {own}};
  if (!group) return shares;
  shares.samples.assign(static_cast<size_t>(group->size()), 0);
  group
      ->all_gather({shares.samples.data(), group->size(), comm::Dtype::i64}, {&own, 1, comm::Dtype::i64},
                   {comm::Purpose::control, "samples of a batch"})
      .wait_host();
  return shares;
}

// What the objective reads of the batches of all passes and ranks: ids, weights, and fields by sample that no block reads.
mesh::Batch gather_batch(const Shares& shares, std::span<const parallel::Pass> passes) {
  std::set<std::string> read;
  for (const auto& block : passes.front().model.blocks()) {
    read.insert(block->card().reads.begin(), block->card().reads.end());
    read.insert(block->card().optional_reads.begin(), block->card().optional_reads.end());
  }
  const auto together = [&](const std::function<at::Tensor(const mesh::Batch&)>& part) {
    std::vector<at::Tensor> parts;
    for (const parallel::Pass& pass : passes) parts.push_back(part(pass.batch));
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  };
  const mesh::Batch& first = passes.front().batch;
  mesh::Batch whole;
  whole.progress = first.progress;
  whole.ids = shares.gather(together([](const mesh::Batch& one) { return one.ids; }), "ids");
  if (first.weights.defined()) whole.weights = shares.gather(together([](const mesh::Batch& one) { return one.weights; }), "weights");
  for (const auto& [name, field] : first.fields)
    if (field.shape == mesh::Field::Shape::per_sample && !read.contains(name))
      whole.fields[name] = {shares.gather(together([&](const mesh::Batch& one) { return one.field(name); }), name)};
  return whole;
}

// The loss of the whole batch, and this rank's rows of the gradients of the outputs. Every rank counts an equal share of the sums.
struct WholeLoss {
  model::Losses losses;
  std::vector<at::Tensor> gradients;  // by output
};

WholeLoss whole_loss(const Shares& shares, std::span<const parallel::Pass> passes, const std::vector<std::string>& names,
                     const std::vector<at::Tensor>& own_outputs) {
  const parallel::Pass& pass = passes.front();
  const mesh::Batch batch = gather_batch(shares, passes);
  model::Values outputs, gradients;
  for (size_t i = 0; i < names.size(); ++i) outputs.put(names[i], shares.gather(own_outputs[i], names[i]));
  CAIRN_CHECK(shares.all() > 0, "a batch of {} ranks without samples", shares.samples.size());
  WholeLoss found;
  found.losses = pass.objective.evaluate(outputs, batch, &gradients, pass.weight, pass.axes);
  for (const std::string& name : names) found.gradients.push_back(gradients.take(name).narrow(0, shares.first(), shares.own()));
  const double share = 1.0 / static_cast<double>(shares.samples.size());
  found.losses.sum = found.losses.sum * share;
  found.losses.count = found.losses.count.to(at::kDouble) * share;
  if (found.losses.measures.defined()) found.losses.measures = found.losses.measures * share;
  if (found.losses.per_sample.defined()) found.losses.per_sample = found.losses.per_sample.narrow(0, shares.first(), shares.own());
  if (found.losses.per_sample_count.defined())
    found.losses.per_sample_count = found.losses.per_sample_count.narrow(0, shares.first(), shares.own());
  return found;
}

// One micro-batch on every rank: forward, the loss of the whole batch, backward.
model::Losses run_at_once(const Shares& shares, std::span<const parallel::Pass> passes, const std::vector<std::string>& names) {
  model::Losses losses;
  const PassObjective objective([&](model::Values& outputs, const mesh::Batch&, model::Values* gradients) {
    std::vector<at::Tensor> own;
    for (const std::string& name : names) own.push_back(outputs.take(name));
    WholeLoss found = whole_loss(shares, passes, names, own);
    for (size_t i = 0; i < names.size(); ++i) gradients->add(names[i], found.gradients[i]);
    losses = std::move(found.losses);
    return losses;
  });
  return run(passes.front(), objective, /*gradients=*/true);
}

// The outputs of a rank without samples: empty, with the sizes and the type that other ranks have. Collective.
std::vector<at::Tensor> with_empty_outputs(const Shares& shares, std::vector<at::Tensor> own, const at::Device& device) {
  constexpr size_t kDims = 8;
  for (at::Tensor& one : own) {
    std::array<int64_t, kDims + 2> form{};  // type, dims, sizes
    if (one.defined()) {
      CAIRN_CHECK(one.dim() <= static_cast<int64_t>(kDims), "an output of {} dims", one.dim());
      form[0] = static_cast<int64_t>(one.scalar_type()), form[1] = one.dim();
      std::copy(one.sizes().begin(), one.sizes().end(), form.begin() + 2);
    }
    shares.group
        ->all_reduce({form.data(), static_cast<int64_t>(form.size()), comm::Dtype::i64}, comm::Reduce::max,
                     {comm::Purpose::control, "sizes of vectors"})
        .wait_host();
    if (one.defined()) continue;
    std::vector<int64_t> sizes(form.begin() + 2, form.begin() + 2 + form[1]);
    sizes[0] = 0;
    one = at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(form[0])).device(device));
  }
  return own;
}

model::Losses run_cached(const Shares& shares, std::span<const parallel::Pass> passes, const std::vector<std::string>& names) {
  std::vector<std::vector<at::Tensor>> by_output(names.size());
  const PassObjective keep([&](model::Values& outputs, const mesh::Batch& batch, model::Values*) {
    for (size_t i = 0; i < names.size(); ++i) by_output[i].push_back(outputs.take(names[i]));
    return model::Losses{.sum = at::zeros({}, batch.ids.options().dtype(at::kDouble))};
  });
  for (const parallel::Pass& pass : passes) run(pass, keep, /*gradients=*/false);
  std::vector<at::Tensor> own;
  for (const std::vector<at::Tensor>& parts : by_output)
    own.push_back(parts.empty() ? at::Tensor() : parts.size() == 1 ? parts.front() : at::cat(parts));
  if (std::ranges::min(shares.samples) == 0) own = with_empty_outputs(shares, std::move(own), passes.front().batch.ids.device());
  const WholeLoss found = whole_loss(shares, passes, names, own);
  int64_t first = 0;
  for (const parallel::Pass& pass : passes) {
    const int64_t count = pass.batch.samples();
    const PassObjective given([&](model::Values&, const mesh::Batch& batch, model::Values* gradients) {
      for (size_t i = 0; i < names.size(); ++i) gradients->add(names[i], found.gradients[i].narrow(0, first, count).contiguous());
      return model::Losses{.sum = at::zeros({}, batch.ids.options().dtype(at::kDouble))};
    });
    run(pass, given, /*gradients=*/true);
    first += count;
  }
  return found.losses;
}

}  // namespace

Execution whole_batch_execution(comm::Group* group, std::shared_ptr<const model::Objective> alone) {
  return [group, alone = std::move(alone)](std::span<const parallel::Pass> passes) {
    std::vector<model::Losses> losses;
    if (!passes.front().into) {
      for (const parallel::Pass& pass : passes) losses.push_back(run(pass, *alone, /*gradients=*/false));
      return losses;
    }
    int64_t own = 0;
    for (const parallel::Pass& pass : passes) own += pass.batch.samples();
    const Shares shares = shares_of(group, own);
    const std::vector<std::string>& names = passes.front().model.blocks().back()->card().writes;
    const bool at_once = passes.size() == 1 && std::ranges::min(shares.samples) > 0;
    losses.push_back(at_once ? run_at_once(shares, passes, names) : run_cached(shares, passes, names));
    return losses;
  };
}

}  // namespace cairn::train
