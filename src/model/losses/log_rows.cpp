#include "model/losses/log_rows.h"

#include <limits>

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::model {

at::Tensor log_probabilities(const at::Tensor& logits, comm::Group* tp, double temperature) {
  const auto precise = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor rows = logits.reshape({-1, logits.size(-1)}).to(precise);
  if (temperature != 1) rows = rows / temperature;
  if (!tp) return at::log_softmax(rows, -1);
  const at::Tensor lse =
      rows.size(1) > 0 ? at::logsumexp(rows, {1}) : at::full({rows.size(0)}, -std::numeric_limits<double>::infinity(), rows.options());
  const at::Tensor all = at::empty({tp->size(), rows.size(0)}, rows.options());
  tp->all_gather(all, lse, {comm::Purpose::loss, "parts of the vocabulary"}).wait();
  return rows - all.logsumexp(0).unsqueeze(1);
}

at::Tensor row_weights(const mesh::Batch& batch, const at::Tensor& rows) {
  at::Tensor counts = at::ones({rows.size(0)}, rows.options());
  if (const auto targets = batch.fields.find("targets"); targets != batch.fields.end())
    counts = targets->second.tensor.reshape({-1}).ne(kernels::kIgnoreTarget).to(rows.scalar_type());
  if (!batch.weights.defined()) return counts;
  return (counts.view({batch.samples(), -1}) * batch.weights.to(rows.scalar_type()).view({-1, 1})).view({-1});
}

}  // namespace cairn::model
