#include "parallel/batch/local_batch.h"

#include <ATen/core/IListRef.h>

#include "comm/group.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/batch/context_batch.h"
#include "parallel/batch/sequence_fields.h"

namespace cairn::parallel {
namespace {

// [samples, length], where the batch is of sequences.
const at::Tensor* tokens_of(const mesh::Batch& batch) {
  const auto tokens = batch.fields.find("tokens");
  return tokens == batch.fields.end() || tokens->second.tensor.dim() < 2 ? nullptr : &tokens->second.tensor;
}

// [rows]: the documents of the position before this rank's first one, where slices are contiguous. Every rank has the whole batch, so none
// needs to be asked.
at::Tensor document_before(const mesh::Batch& whole, const std::vector<mesh::Interval>& pieces) {
  const auto documents = whole.fields.find("documents");
  if (documents == whole.fields.end() || pieces.size() != 1 || pieces[0].begin == 0) return {};
  return documents->second.tensor.select(1, pieces[0].begin - 1).contiguous();
}

}  // namespace

LocalBatch::LocalBatch(const Pass& pass) : whole_(pass.batch) {
  if (!pass.model.loss_terms().empty()) add_sequence_fields(whole_);
  comm::Group* cp = pass.axes.find("cp");
  const at::Tensor* tokens = tokens_of(whole_);
  const bool draws = (pass.into || pass.as_training) && pass.options.draws_by_token;
  if (!tokens) positions_ = pass.model.positions();
  if (draws && positions_ > 0) keys_ = whole_.ids.view({-1, 1}) * kMaxPositions + at::arange(positions_, whole_.ids.options());
  if (!tokens) return;
  const auto given = whole_.fields.find("token_keys");  // of rows that several samples share (step_plan/unit_batch.h)
  if (draws && given != whole_.fields.end()) {
    keys_ = given->second.tensor;
  } else if (draws) {
    const int64_t rows = whole_.samples() > 0 ? tokens->size(0) / whole_.samples() : 1;  // of a sample: a pair of answers has two
    const at::Tensor row_ids = (whole_.ids.view({-1, 1}) * rows + at::arange(rows, whole_.ids.options())).view({-1, 1});
    keys_ = row_ids * kMaxPositions + at::arange(tokens->size(1), whole_.ids.options());
  }
  if (!cp) return;
  cut_ = true;
  layout_ = {.split = make_context_split(tokens->size(1), cp->size(), pass.context.balanced),
             .method = pass.context.method,
             .linear = pass.context.linear,
             .scan_blocks = pass.context.scan_blocks,
             .state_dtype = pass.context.state_dtype,
             .mistakes = pass.context.mistakes};
  layout_.document_before = document_before(whole_, layout_.split.pieces[static_cast<size_t>(cp->rank())]);
  own_ = cut_context(whole_, layout_.split, cp->rank());
  if (!keys_.defined()) return;
  std::vector<at::Tensor> pieces;
  for (const mesh::Interval& piece : layout_.split.pieces[static_cast<size_t>(cp->rank())])
    pieces.push_back(keys_.narrow(1, piece.begin, piece.length()));
  keys_ = pieces.empty() ? keys_.narrow(1, 0, 0) : at::cat(pieces, 1).contiguous();
}

model::Slice LocalBatch::slice() const {
  const at::Tensor* tokens = tokens_of(batch());
  if (!tokens) return positions_ > 0 ? model::Slice{.batch = batch().samples(), .length = positions_} : model::Slice{};
  return {.batch = tokens->size(0), .length = tokens->size(1), .context = cut_ ? &layout_ : nullptr};
}

}  // namespace cairn::parallel
