#include "mesh/batch.h"

#include "base/check.h"

namespace cairn::mesh {

const at::Tensor& Batch::field(const std::string& name) const {
  const auto found = fields.find(name);
  CAIRN_CHECK(found != fields.end(), "the batch has no field \"{}\"", name);
  return found->second.tensor;
}

Batch slice(const Batch& batch, int64_t begin, int64_t end) {
  Batch part;
  part.progress = batch.progress;
  part.norm_samples = batch.norm_samples;
  part.ids = batch.ids.slice(0, begin, end);
  if (batch.weights.defined()) part.weights = batch.weights.slice(0, begin, end);
  for (const auto& [name, field] : batch.fields) {
    CAIRN_CHECK(field.shape != Field::Shape::ragged, "field \"{}\" is ragged and cannot be sliced by samples", name);
    const int64_t rows = field.shape == Field::Shape::rows && batch.samples() > 0 ? field.tensor.size(0) / batch.samples() : 1;
    part.fields[name] = {field.shape == Field::Shape::whole ? field.tensor : field.tensor.slice(0, rows * begin, rows * end), field.shape};
  }
  return part;
}

Batch to_device(const Batch& batch, const at::Device& device) {
  Batch moved = batch;
  const auto move = [&](at::Tensor& t) {
    if (t.defined()) t = t.to(device, /*non_blocking=*/true);
  };
  move(moved.ids);
  move(moved.weights);
  for (auto& [name, field] : moved.fields) move(field.tensor);
  return moved;
}

}  // namespace cairn::mesh
