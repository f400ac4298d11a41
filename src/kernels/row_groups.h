#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// Rows of a matrix in consecutive groups: group g has counts[g] rows, which may be none. The rows of one expert are a group. Copies share
// the counts.
class RowGroups {
 public:
  RowGroups() = default;
  explicit RowGroups(at::Tensor counts /*int64 [groups], on any device*/);
  explicit RowGroups(const std::vector<int64_t>& counts);

  int64_t size() const;  // groups
  // On the device that they were given on: a kernel there need not wait for the host.
  const at::Tensor& counts() const;
  // On the host. The first call waits for the device.
  const std::vector<int64_t>& host() const;
  int64_t rows() const;  // of all groups; on the host
  bool defined() const { return state_ != nullptr; }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cairn::kernels
