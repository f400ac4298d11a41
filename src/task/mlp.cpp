#include "task/mlp.h"

#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "task/task.h"

namespace cairn::task {

Params mlp(const std::vector<int64_t>& widths, const base::Random& random, double last) {
  if (widths.size() < 2) base::fail_input("a perceptron of {} widths: inputs and outputs at least", widths.size());
  mesh::NamedTensors all;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const double deviation = std::sqrt(2.0 / static_cast<double>(widths[i])) * (i + 2 == widths.size() ? last : 1);
    all.push_back({fmt::format("layers.{}.weight", i), normal(random.for_index(i), {widths[i], widths[i + 1]}) * deviation});
    all.push_back({fmt::format("layers.{}.bias", i), at::zeros({1, widths[i + 1]})});
  }
  return all;
}

at::Tensor run_mlp(const Params& params, at::Tensor x) {
  for (size_t i = 0; i < params.size(); i += 2) {
    x = at::matmul(x, params.all()[i].tensor) + params.all()[i + 1].tensor;
    if (i + 2 < params.size()) x = x.relu();
  }
  return x;
}

}  // namespace cairn::task
