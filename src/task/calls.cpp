#include "task/calls.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/dtensor.h"

namespace cairn::task {
namespace {

// Turns an ATen error inside a function of the task into one that names the function.
template <typename Call>
auto within(const char* function, const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    base::fail_input("{} failed: {}", function, error.what_without_backtrace());
  }
}

std::string shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : "no tensor";
}

void check_scalar(const at::Tensor& loss) {
  if (!loss.defined() || loss.dim() != 0)
    base::fail_input("loss returned {}: it must be a scalar; return the mean over the batch, or a sum and its weight",
                     loss.defined() ? "a tensor of shape " + shape_of(loss) : shape_of(loss));
}

void check_shapes(const char* function, const Params& made, const Params& like) {
  for (const mesh::NamedTensor& one : like.all())
    if (const at::Tensor& tensor = made[one.name]; !tensor.defined() || tensor.sizes() != one.tensor.sizes())
      base::fail_input("{} gave {} for parameter \"{}\", which is {}: sum over the examples", function, shape_of(tensor), one.name,
                       shape_of(one.tensor));
}

// Where functions read parameters in bf16, they read examples in bf16 too.
Batch in_precision_of(const Params& params, Batch batch) {
  const at::ScalarType dtype = params.size() == 0 ? at::kFloat : params.all().front().tensor.scalar_type();
  if (dtype != at::kBFloat16) return batch;
  for (auto& [name, field] : batch.fields)
    if (field.tensor.is_floating_point()) field.tensor = field.tensor.to(dtype);
  return batch;
}

}  // namespace

Batch collated(const Examples& examples, std::span<const int64_t> places, const at::Device& device) {
  Batch batch = within("collate", [&] { return examples.collate(places); });
  for (const auto& [name, field] : batch.fields) {
    if (field.shape != mesh::Field::Shape::per_sample) continue;
    if (!field.tensor.defined() || field.tensor.dim() == 0 || field.tensor.size(0) != static_cast<int64_t>(places.size()))
      base::fail_input("collate made field \"{}\" of shape {} from {} examples: its first dim must be the examples", name,
                       shape_of(field.tensor), places.size());
  }
  batch.ids = at::tensor(at::IntArrayRef(places.data(), places.size()), at::kLong);
  return mesh::to_device(batch, device);
}

WeightedLoss weighted_loss(const Loss& loss, int64_t examples) {
  check_scalar(loss.sum);
  const at::Tensor sum = loss.sum.scalar_type() == at::kBFloat16 ? loss.sum.to(at::kFloat) : loss.sum;  // it is not rounded again
  if (!loss.weight.defined()) {
    const auto n = static_cast<double>(examples);
    return {sum * n, at::full({}, n, sum.options().dtype(at::kDouble).requires_grad(false))};
  }
  if (loss.weight.dim() != 0)
    base::fail_input("loss returned a weight of shape {}: it must be a scalar, what the sum is over", shape_of(loss.weight));
  return {sum, loss.weight.detach().to(sum.device(), at::kDouble)};
}

WeightedLoss loss_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch, bool training) {
  const at::AutoGradMode record(true);  // a loss may take gradients inside, even in an evaluation
  return within("loss",
                [&] { return weighted_loss(functions.loss(random, params, in_precision_of(params, batch), training), batch.samples()); });
}

Outputs outputs_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch) {
  if (!functions.predict) base::fail_input("the task has no predict: give it one, or ask for no predictions and no metric");
  const at::AutoGradMode record(true);  // as for a loss
  Outputs outputs = within("predict", [&] { return functions.predict(random, params, in_precision_of(params, batch)); });
  for (auto& [name, tensor] : outputs) {
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != batch.samples())
      base::fail_input("predict's output \"{}\" is {}: its first dim must be the batch, {} examples", name, shape_of(tensor),
                       batch.samples());
    tensor = mesh::full_tensor(tensor.detach());
  }
  return outputs;
}

Metrics metrics_of(const Examples& examples, int64_t first, const Outputs& outputs) {
  if (!examples.metric) return {};
  Metrics metrics = within("metric", [&] { return examples.metric(first, outputs); });
  for (const auto& [name, value] : metrics)
    if (!std::isfinite(value))
      base::fail_input("metric \"{}\" is {}: it must be a finite number, for JSON has no others; count examples where it is undefined",
                       name, value);
  return metrics;
}

Params gradients_of(const WeightedLoss& loss, const Params& params) {
  if (!loss.sum.requires_grad())
    base::fail_input("loss does not depend on any parameter: nothing can be learned from it; is something detached, or taken by item()?");
  return within("the gradient of loss", [&] { return gradients(loss.sum, params); });
}

TrainStep::Part partial_sums(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch) {
  const at::AutoGradMode record(true);
  TrainStep::Part part =
      within("train_step.part", [&] { return functions.train_step.part(random, params, in_precision_of(params, batch)); });
  check_shapes("train_step.part", part.sums, params);
  return part;
}

Params finish_sums(const TaskFunctions& functions, const base::Random& random, const Params& sums) {
  Params finished = within("train_step.finish", [&] { return functions.train_step.finish(random, sums); });
  check_shapes("train_step.finish", finished, sums);
  return finished;
}

}  // namespace cairn::task
