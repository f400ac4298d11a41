#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"
#include "train/state/restore.h"

namespace cairn::train {

// A copy of a rank's part of a snapshot in host memory, so that a thread can write it while training changes the originals. The memory is
// reused for the next snapshot. Copies of GPU tensors use pinned memory.
class HostState {
 public:
  HostState(const at::Device& device, base::MemoryTags& memory) : device_(device), memory_(memory) {}  // the tags must outlive this

  // Allocates memory for this. Then the first copy does not wait for it, and a machine that cannot pin that much memory fails at the start
  // of the run.
  void make_room(RankSnapshot saved);
  // Replaces the tensors by copies, which are valid until the next call. GPU tensors are copied on a side stream, and waited for once at
  // the end.
  void take(RankSnapshot& saved);

 private:
  struct Slab {
    at::Tensor bytes;
    int64_t used = 0;
  };
  at::Tensor room_like(const at::Tensor& tensor);  // contiguous, on the host
  void clear();

  at::Device device_;
  base::MemoryTags& memory_;
  std::vector<Slab> plain_, pinned_;
  std::vector<base::BookedMemory> booked_;
};

}  // namespace cairn::train
