// Tensors between ranks that do not know their shapes in advance.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::parallel {

// Tensors whose shape the receiver does not know: a header goes before each.
class TensorMessages {
 public:
  void send(comm::Group& group, const at::Tensor& tensor, int peer, const std::string& what) {
    const at::Tensor header = at::zeros({kDimsMax + 2}, at::kLong);
    auto* const numbers = header.mutable_data_ptr<int64_t>();
    CAIRN_CHECK(tensor.dim() <= kDimsMax, "{} has {} dims", what, tensor.dim());
    numbers[0] = static_cast<int64_t>(tensor.scalar_type());
    numbers[1] = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), numbers + 2);
    sent_.push_back(group.send(header, peer, {comm::Purpose::control, what}));
    if (tensor.numel() > 0) sent_.push_back(group.send(tensor.contiguous(), peer, {comm::Purpose::activation, what}));
    group.progress();
  }

  static at::Tensor receive(comm::Group& group, int peer, const std::string& what, at::Device device) {
    const at::Tensor header = at::empty({kDimsMax + 2}, at::kLong);
    group.recv(header, peer, {comm::Purpose::control, what}).wait_host();
    const auto* numbers = header.const_data_ptr<int64_t>();
    CAIRN_CHECK(numbers[1] >= 0 && numbers[1] <= kDimsMax, "{} dims for {}", numbers[1], what);
    const at::Tensor tensor = at::empty(std::vector<int64_t>(numbers + 2, numbers + 2 + numbers[1]),
                                        at::TensorOptions().dtype(static_cast<at::ScalarType>(numbers[0])).device(device));
    if (tensor.numel() > 0) group.recv(tensor, peer, {comm::Purpose::activation, what}).wait();
    return tensor;
  }

  void keep(comm::Work work) { sent_.push_back(std::move(work)); }
  // Waits for what was sent so far: the receivers have it.
  void flush() {
    comm::Work::all(std::move(sent_)).wait_host();
    sent_.clear();
  }

 private:
  static constexpr int64_t kDimsMax = 8;
  std::vector<comm::Work> sent_;
};

}  // namespace cairn::parallel
