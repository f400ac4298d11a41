#include "train/steps/gradient_checksums.h"

#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "kernels/aten.h"
#include "kernels/tensor_checksum.h"

namespace cairn::train {
GradientChecksums::GradientChecksums(const at::Tensor& loss_sum, const mesh::NamedTensors& gradients) : gradients_(gradients) {
  std::vector<at::Tensor> sums;
  for (const mesh::NamedTensor& one : gradients) sums.push_back(kernels::tensor_checksum(one.tensor));
  if (loss_sum.defined()) sums.push_back(kernels::tensor_checksum(loss_sum));
  if (!sums.empty()) sums_ = at::stack(sums);
}

void GradientChecksums::expect_same(const GradientChecksums& again, int64_t step) const {
  if (!sums_.defined()) return;  // a rank without trained parameters and without samples
  const at::Tensor differs = sums_.ne(again.sums_).cpu();
  const auto* other = differs.const_data_ptr<bool>();
  std::string first;
  int64_t count = 0;
  for (int64_t i = differs.numel() - 1; i >= 0; --i)
    if (other[i] && ++count == 1)
      first = i < std::ssize(gradients_) ? "the gradient of " + gradients_[static_cast<size_t>(i)].name : std::string("the loss");
  if (count == 0) return;
  throw Error(
      Error::Kind::diverged,
      fmt::format("step {}: computed twice (train.check_every), {}{} differs between the two. Some hardware or driver computes "
                  "wrongly at times: a processor, a GPU or its memory, on this rank or on one that shares the model with it. "
                  "Nothing of this step is kept; the last snapshot may be wrong already. Look for errors on the machines (nvidia-smi -q -d "
                  "ECC, dmesg) and resume without the faulty one",
                  step, first, count == 1 ? "" : fmt::format(" (and {} more tensors)", count - 1)));
}

}  // namespace cairn::train
