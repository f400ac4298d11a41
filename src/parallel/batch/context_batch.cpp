#include "parallel/batch/context_batch.h"

#include <string>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/splits.h"

namespace cairn::parallel {
namespace {

// What a coordinate holds of dim 1.
at::Tensor cut_positions(const at::Tensor& x, const std::vector<mesh::Interval>& pieces) {
  if (pieces.size() == 1) return x.narrow(1, pieces[0].begin, pieces[0].length()).contiguous();
  std::vector<at::Tensor> parts{x.narrow(1, 0, 0)};
  for (const mesh::Interval& piece : pieces) parts.push_back(x.narrow(1, piece.begin, piece.length()));
  return at::cat(parts, 1);
}

bool by_position(const mesh::Field& field, int64_t samples, int64_t length) {
  const at::Tensor& x = field.tensor;
  if (x.dim() != 2 || x.size(1) != length) return false;
  if (field.shape == mesh::Field::Shape::rows) return samples > 0 && x.size(0) % samples == 0;
  return field.shape == mesh::Field::Shape::per_sample && x.size(0) == samples;
}

}  // namespace

model::ContextSplit make_context_split(int64_t length, int parts, bool balanced) {
  if (length < 0 || parts < 1)
    base::fail_input("a context split of {} positions over {} ranks: there must be at least 0 positions and 1 rank", length, parts);
  model::ContextSplit split{length, {}};
  if (balanced) {
    split.pieces = mesh::split_zigzag(1, length, parts).pieces;
    return split;
  }
  for (int c = 0; c < parts; ++c) {
    const mesh::Interval part = mesh::even_part(length, parts, c);
    split.pieces.push_back(part.length() > 0 ? std::vector<mesh::Interval>{part} : std::vector<mesh::Interval>{});
  }
  return split;
}

mesh::Batch cut_context(const mesh::Batch& batch, const model::ContextSplit& split, int coordinate) {
  const int parts = static_cast<int>(split.pieces.size());
  model::check(split, parts);
  if (coordinate < 0 || coordinate >= parts)
    base::fail_input("coordinate {} of a context split over {} ranks: coordinates are 0 to {}", coordinate, parts, parts - 1);
  const std::vector<mesh::Interval>& pieces = split.pieces[static_cast<size_t>(coordinate)];
  mesh::Batch part = batch;
  std::string others;
  bool found = false;
  int64_t rows = batch.samples();
  mesh::Field::Shape shape = mesh::Field::Shape::per_sample;
  at::TensorOptions options = batch.ids.defined() ? batch.ids.options() : at::TensorOptions();
  for (auto& [name, field] : part.fields) {
    if (field.shape == mesh::Field::Shape::ragged)
      base::fail_input("field \"{}\" is ragged: a batch whose rows have lengths of their own cannot be cut along cp; pack or pad the rows",
                       name);
    if (by_position(field, batch.samples(), split.length)) {
      field.tensor = cut_positions(field.tensor, pieces);
      options = field.tensor.options();
      rows = field.tensor.size(0);
      shape = field.shape;
      found = true;
    } else {
      others.append(others.empty() ? "" : ", ").append(fmt::format("\"{}\" {}", name, c10::str(field.tensor.sizes())));
    }
  }
  if (!found)
    base::fail_input("no field of the batch has {} samples of {} positions (there are {}): split the sequence by its own length",
                     batch.samples(), split.length, others.empty() ? "none" : others);
  if (!part.fields.contains("positions")) {
    const at::Tensor all = at::arange(split.length, options.dtype(at::kLong)).unsqueeze(0);
    part.fields["positions"] = {cut_positions(all, pieces).expand({rows, -1}).contiguous(), shape};
  }
  return part;
}

}  // namespace cairn::parallel
