#include "train/gradient_sums.h"

#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::train {
namespace {

at::Tensor sum_of_bits(const at::Tensor& x) {
  const auto bytes = x.element_size();
  return x.reshape({-1}).view(bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong).sum(at::kLong);
}

}  // namespace

GradientSums::GradientSums(const at::Tensor& loss_sum, const mesh::NamedTensors& gradients) : gradients_(gradients) {
  std::vector<at::Tensor> sums;
  for (const mesh::NamedTensor& one : gradients) sums.push_back(sum_of_bits(one.tensor));
  if (loss_sum.defined()) sums.push_back(sum_of_bits(loss_sum));
  if (!sums.empty()) sums_ = at::stack(sums);
}

void GradientSums::expect_same(const GradientSums& again, int64_t step) const {
  if (!sums_.defined()) return;  // a rank that trains nothing, of a batch that has nothing for it
  const at::Tensor differs = sums_.ne(again.sums_).cpu();
  const auto* other = differs.const_data_ptr<bool>();
  std::string first;
  int64_t count = 0;
  for (int64_t i = 0; i < differs.numel(); ++i)
    if (other[i] && ++count == 1)
      first = i < std::ssize(gradients_) ? "the gradient of " + gradients_[static_cast<size_t>(i)].name : std::string("the loss");
  if (count == 0) return;
  throw Error(Error::Kind::diverged,
              fmt::format("step {}: computed twice (train.check_every), {}{} came out with other bits. Something computes wrong now and "
                          "then: the GPU or the processor, its memory, a driver. Nothing of this step is kept; the last snapshot may be "
                          "wrong already. Look at what the machine says of it (nvidia-smi -q -d ECC, dmesg) and resume on another one",
                          step, first, count == 1 ? "" : fmt::format(" and {} more results", count - 1)));
}

}  // namespace cairn::train
