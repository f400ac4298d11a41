#include "parallel/step_plan/unit_batch.h"

#include <bit>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "parallel/batch/local_batch.h"

namespace cairn::parallel {
namespace {

// Where the sequences of a row begin, as data/samples/document_starts.h adds it to batches for a GPU.
void add_starts(mesh::Batch& batch, const StepUnit& unit, const at::Device& device) {
  const auto most = static_cast<int64_t>(std::bit_ceil(unit.sequences.size()));
  const at::Tensor table = at::full({1, most}, unit.tokens(), at::kInt);
  auto* to = table.mutable_data_ptr<int32_t>();
  int32_t begin = 0;
  for (const PlannedSequence& one : unit.sequences) *to++ = begin, begin += static_cast<int32_t>(one.length);
  batch.fields["document_starts"] = {table.to(device), mesh::Field::Shape::per_sample};
  batch.fields["documents_counted"] = {at::zeros({most}, at::TensorOptions().dtype(at::kByte).device(device)), mesh::Field::Shape::whole};
}

mesh::Batch unit_batch(const StepUnit& unit, const mesh::Batch& all, int64_t first_sequence, int64_t first_token) {
  const int64_t tokens = unit.tokens(), count = static_cast<int64_t>(unit.sequences.size());
  mesh::Batch batch;
  batch.progress = all.progress;
  batch.ids = all.ids.narrow(0, first_sequence, 1);
  const auto put = [&](const char* name, const at::Tensor& row) {
    batch.fields[name] = {row.view({1, tokens}), mesh::Field::Shape::per_sample};
  };
  for (const char* name : {"tokens", "targets"}) put(name, all.field(name).narrow(0, first_token, tokens));
  const at::TensorOptions whole = all.field("tokens").options();
  std::vector<at::Tensor> positions, documents, keys;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = unit.sequences[static_cast<size_t>(i)].length;
    positions.push_back(at::arange(length, whole));
    if (count > 1) documents.push_back(at::full({length}, i, whole));
    keys.push_back(all.ids.narrow(0, first_sequence + i, 1) * kMaxPositions + positions.back());
  }
  put("positions", at::cat(positions));
  put("token_keys", at::cat(keys));
  if (count > 1) put("documents", at::cat(documents));
  if (count > 1 && whole.device().is_cuda()) add_starts(batch, unit, whole.device());
  return batch;
}

}  // namespace

std::vector<int64_t> places_of(const StepPlan& plan, int rank) {
  std::vector<int64_t> places;
  for (const int64_t u : passes_of(plan, rank)) {
    if (u == kNoUnit) continue;
    for (const PlannedSequence& one : plan.units[static_cast<size_t>(u)].sequences) places.push_back(one.place);
  }
  return places;
}

std::vector<mesh::Batch> unit_batches(const StepPlan& plan, int rank, const mesh::Batch& sequences) {
  std::vector<mesh::Batch> batches;
  int64_t sequence = 0, token = 0;
  for (const int64_t u : passes_of(plan, rank)) {
    if (u == kNoUnit) {
      mesh::Batch& empty = batches.emplace_back();
      empty.progress = sequences.progress;
      empty.ids = sequences.ids.narrow(0, 0, 0);
      continue;
    }
    const StepUnit& unit = plan.units[static_cast<size_t>(u)];
    batches.push_back(unit_batch(unit, sequences, sequence, token));
    sequence += static_cast<int64_t>(unit.sequences.size());
    token += unit.tokens();
  }
  CAIRN_CHECK(sequence == sequences.samples() && (sequence == 0 || token == sequences.field("tokens").size(0)),
              "{} sequences of {} tokens are planned for rank {}, and its batch has {}", sequence, token, rank, sequences.samples());
  return batches;
}

mesh::Batch sequence_batch(const mesh::Batch& sequence) {
  CAIRN_CHECK(sequence.samples() == 1, "{} sequences in a row of one", sequence.samples());
  return unit_batch({.ranks = {0}, .sequences = {{0, sequence.field("tokens").size(0)}}}, sequence, 0, 0);
}

}  // namespace cairn::parallel
