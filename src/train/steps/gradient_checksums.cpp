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
  if (!sums_.defined()) return;  // a rank that trains nothing, of a batch that has nothing for it
  const at::Tensor differs = sums_.ne(again.sums_).cpu();
  const auto* other = differs.const_data_ptr<bool>();
  std::string first;
  int64_t count = 0;
  for (int64_t i = differs.numel() - 1; i >= 0; --i)
    if (other[i] && ++count == 1)
      first = i < std::ssize(gradients_) ? "the gradient of " + gradients_[static_cast<size_t>(i)].name : std::string("the loss");
  if (count == 0) return;
  throw Error(Error::Kind::diverged,
              fmt::format("step {}: computed twice (train.check_every), {}{} came out with other bits. Something computes wrong now and "
                          "then: a processor or GPU, its memory, a driver, here or on a rank that shares the model or its state with this "
                          "one. Nothing of this step is kept; the last snapshot may be wrong already. Look at what the machines say of it "
                          "(nvidia-smi -q -d ECC, dmesg) and resume without the one that it is",
                          step, first, count == 1 ? "" : fmt::format(" (and {} more of what it gave)", count - 1)));
}

}  // namespace cairn::train
