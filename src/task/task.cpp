#include "task/task.h"

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::task {

Batch batch_of(const std::map<std::string, at::Tensor>& fields) {
  Batch batch;
  for (const auto& [name, tensor] : fields) {
    if (tensor.dim() == 0) base::fail_input("field \"{}\" of a batch is a scalar: its first dim must be the examples", name);
    if (batch.ids.defined() && batch.samples() != tensor.size(0))
      base::fail_input("field \"{}\" of a batch has {} examples, \"{}\" has {}: the first dim of all must be the examples", name,
                       tensor.size(0), fields.begin()->first, batch.samples());
    if (!batch.ids.defined()) batch.ids = at::arange(tensor.size(0), at::kLong);
    batch.fields[name] = {tensor};
  }
  return batch;
}

at::Tensor normal(const base::Random& random, at::IntArrayRef shape) {
  const at::Tensor numbers = at::empty(shape, at::kFloat);
  random.fill_normal({numbers.mutable_data_ptr<float>(), static_cast<size_t>(numbers.numel())});
  return numbers;
}

at::Tensor uniform(const base::Random& random, at::IntArrayRef shape) {
  const at::Tensor numbers = at::empty(shape, at::kFloat);
  random.fill_uniform({numbers.mutable_data_ptr<float>(), static_cast<size_t>(numbers.numel())});
  return numbers;
}

}  // namespace cairn::task
