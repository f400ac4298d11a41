#include "model/losses/row_losses.h"

#include <utility>
#include <vector>

#include <ATen/core/IListRef.h>

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::model {

bool is_vocab_parallel(const Value& logits, const mesh::Axes& axes) {
  const mesh::Placement::How how = logits.placement.on("tp");
  return std::holds_alternative<mesh::Split>(how) && axes.find("tp");
}

namespace {

const mesh::Split* split_of(const mesh::Placement::How& how) { return std::get_if<mesh::Split>(&how); }

// Targets relative to this rank's part of the vocabulary; kElsewhereTarget for those of other ranks.
at::Tensor local_targets(const at::Tensor& targets, const mesh::Interval& here) {
  const at::Tensor ignored = targets.eq(kernels::kIgnoreTarget);
  const at::Tensor local = targets - here.begin;
  const at::Tensor elsewhere = local.lt(0).logical_or_(local.ge(here.length()));
  return local.masked_fill(elsewhere, kernels::kElsewhereTarget).masked_fill(ignored, kernels::kIgnoreTarget);
}

RowLosses losses_of(const at::Tensor& rows, const Value& logits, const at::Tensor& targets, const mesh::Axes& axes) {
  const auto precise = rows.options().dtype(rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const int64_t n = rows.size(0);
  const at::Tensor found = at::empty({2, n}, precise);  // loss and lse
  if (!is_vocab_parallel(logits, axes)) {
    kernels::cross_entropy(found[0], found[1], rows, targets);
    return {rows, targets, found[0], found[1]};
  }
  comm::Group& tp = *axes.find("tp");
  const mesh::Placement::How how = logits.placement.on("tp");
  const std::vector<mesh::Interval>& mine = split_of(how)->pieces.at(static_cast<size_t>(tp.rank()));
  const at::Tensor local = local_targets(targets, mine.empty() ? mesh::Interval{} : mine.front());
  if (rows.size(1) > 0) {
    kernels::cross_entropy(found[0], found[1], rows, local);
    found[0].copy_(found[1] - found[0]);  // the target's logit, 0 where it is elsewhere
    found[0].masked_fill_(local.eq(kernels::kIgnoreTarget), 0);
  } else {
    found[0].zero_();
    found[1].fill_(-std::numeric_limits<double>::infinity());
  }
  const at::Tensor all = at::empty({tp.size(), 2, n}, precise);
  tp.all_gather(all, found, {comm::Purpose::loss, "parts of the vocabulary"}).wait();
  const at::Tensor lse = all.select(1, 1).logsumexp(0), chosen = all.select(1, 0).sum(0);
  return {rows, local, (lse - chosen).masked_fill_(targets.eq(kernels::kIgnoreTarget), 0), lse};
}

void overwrite_by_gradient(const RowLosses& losses, const at::Tensor& scale) {
  if (losses.rows.size(1) > 0) kernels::cross_entropy_backward(losses.rows, losses.lse, losses.targets, scale);
}

at::Tensor whole_rows(const Value& logits) { return logits.tensor.view({-1, logits.tensor.size(-1)}); }

at::Tensor cooled(const at::Tensor& rows, double temperature) { return temperature == 1 ? rows : rows.div_(temperature); }

at::Tensor part_of(const at::Tensor& by_row, int64_t begin, int64_t count) {
  return by_row.numel() == 1 ? by_row : by_row.narrow(0, begin, count);
}

}  // namespace

RowLosses row_losses(const Value& logits, const at::Tensor& targets, const mesh::Axes& axes, double temperature) {
  if (!logits.chunked_logits) return losses_of(cooled(whole_rows(logits), temperature), logits, targets, axes);
  ChunkedLogits& chunks = *logits.chunked_logits;
  std::vector<at::Tensor> local, loss, lse;
  for (int64_t chunk = 0, begin = 0; chunk < chunks.chunks(); ++chunk) {
    const at::Tensor rows = cooled(chunks.compute(chunk), temperature);
    RowLosses found = losses_of(rows, logits, targets.narrow(0, begin, rows.size(0)), axes);
    local.push_back(std::move(found.targets)), loss.push_back(std::move(found.loss)), lse.push_back(std::move(found.lse));
    begin += rows.size(0);
  }
  return {at::Tensor(), at::cat(local), at::cat(loss), at::cat(lse)};
}

void add_row_gradients(Values& gradients, const Value& logits, const RowLosses& losses, const at::Tensor& scale) {
  if (!logits.chunked_logits) {
    overwrite_by_gradient(losses, scale);
    return gradients.add("logits", logits.tensor);
  }
  ChunkedLogits& chunks = *logits.chunked_logits;
  for (int64_t chunk = 0, begin = 0; chunk < chunks.chunks(); ++chunk) {
    const at::Tensor rows = chunks.compute(chunk);
    const int64_t count = rows.size(0);
    overwrite_by_gradient({rows, losses.targets.narrow(0, begin, count), {}, losses.lse.narrow(0, begin, count)},
                          part_of(scale, begin, count));
    chunks.accept_gradient(chunk, {}, nullptr);
    begin += count;
  }
  gradients.add("logits", Value{.chunked_logits = logits.chunked_logits});
}

at::Tensor row_losses_and_gradients(Values& gradients, const Value& logits, const at::Tensor& targets, const mesh::Axes& axes,
                                    const RowSlope& slope, double temperature) {
  const auto turn = [&](const at::Tensor& rows, int64_t begin) {
    const RowLosses found = losses_of(cooled(rows, temperature), logits, targets.narrow(0, begin, rows.size(0)), axes);
    at::Tensor scale = slope(found.loss, begin).to(found.lse.scalar_type());
    overwrite_by_gradient(found, temperature == 1 ? scale : scale / temperature);
    return found.loss;
  };
  if (!logits.chunked_logits) {
    at::Tensor loss = turn(whole_rows(logits), 0);
    gradients.add("logits", logits.tensor);
    return loss;
  }
  ChunkedLogits& chunks = *logits.chunked_logits;
  std::vector<at::Tensor> losses;
  for (int64_t chunk = 0, begin = 0; chunk < chunks.chunks(); ++chunk) {
    const at::Tensor rows = chunks.compute(chunk);
    losses.push_back(turn(rows, begin));
    chunks.accept_gradient(chunk, {}, nullptr);
    begin += rows.size(0);
  }
  gradients.add("logits", Value{.chunked_logits = logits.chunked_logits});
  return at::cat(losses);
}

}  // namespace cairn::model
