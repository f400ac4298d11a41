#include "model/losses/row_losses.h"

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::model {
namespace {

const mesh::Split* split_of(const mesh::Placement::How& how) { return std::get_if<mesh::Split>(&how); }

// Targets relative to this rank's part of the vocabulary; kElsewhereTarget for those of other ranks.
at::Tensor local_targets(const at::Tensor& targets, const mesh::Interval& here) {
  const at::Tensor ignored = targets.eq(kernels::kIgnoreTarget);
  const at::Tensor local = targets - here.begin;
  const at::Tensor elsewhere = local.lt(0).logical_or_(local.ge(here.length()));
  return local.masked_fill(elsewhere, kernels::kElsewhereTarget).masked_fill(ignored, kernels::kIgnoreTarget);
}

}  // namespace

bool is_vocab_parallel(const Value& logits, const mesh::Axes& axes) {
  const mesh::Placement::How how = logits.placement.on("tp");
  return split_of(how) && axes.find("tp");
}

RowLosses row_losses(const Value& logits, const at::Tensor& targets, const mesh::Axes& axes) {
  const at::Tensor rows = logits.tensor.view({-1, logits.tensor.size(-1)});
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

}  // namespace cairn::model
