// The nearest centroid of every row, by matrix products on the CPU or a device.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/search/rows.h"

namespace cairn::data {

constexpr int64_t kAssignedRows = 256;  // of a block; blocks begin at multiples of it, whatever the share of a rank

struct AssignedBlock {
  int64_t first = 0, count = 0;
  at::Tensor rows = {};             // fp32 [count, dim] on the CPU
  std::vector<int32_t> which = {};  // the nearest centroid of each
};

// The blocks of a rank. Shares are widened to whole blocks, so that every row belongs to one rank.
struct BlockShare {
  int64_t first = 0, end = 0;
};
BlockShare block_share(const RowSource& rows, const RowShare& share);

// One pass over the rows of a share: act(block, thread) for each block, on several threads. The nearest centroid c of a row x has the
// largest  <x, c> - |c|^2 / 2  (on the sphere: <x, c>), with <x, c> as scalar_product gives it; of equal ones the first. A product in fp32
// settles it where it leads by more than its error; other rows are scored again. So labels depend neither on the device nor on its kernels.
// Without a device the CPU works on blocks by itself; `device` may be a CPU, which then does as a GPU would.
void assign_centroids(const RowSource& rows, const BlockShare& share, const at::Tensor& centroids, bool spherical,
                      const std::optional<at::Device>& device, const std::function<void(const AssignedBlock& block, int thread)>& act);

}  // namespace cairn::data
