#include "parallel/local_batch.h"

#include "comm/group.h"
#include "parallel/context_batch.h"

namespace cairn::parallel {
namespace {

// [samples, length], where the batch is of sequences.
const at::Tensor* tokens_of(const mesh::Batch& batch) {
  const auto tokens = batch.fields.find("tokens");
  return tokens == batch.fields.end() || tokens->second.tensor.dim() < 2 ? nullptr : &tokens->second.tensor;
}

}  // namespace

LocalBatch::LocalBatch(const Pass& pass) : whole_(pass.batch), ring_(pass.context.form == "ring") {
  comm::Group* cp = pass.axes.find("cp");
  const at::Tensor* tokens = tokens_of(whole_);
  if (!cp || !tokens) return;
  cut_ = true;
  split_ = make_context_split(tokens->size(1), cp->size(), pass.context.balanced);
  own_ = cut_context(whole_, split_, cp->rank());
}

model::Slice LocalBatch::slice() const {
  const at::Tensor* tokens = tokens_of(batch());
  if (!tokens) return {};
  return {.batch = tokens->size(0), .length = tokens->size(1), .context = cut_ ? &split_ : nullptr, .ring = ring_};
}

}  // namespace cairn::parallel
