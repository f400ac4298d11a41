#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"
#include "snapshot/snapshot.h"

namespace cairn::train {

// A copy of a snapshot's contents in host memory, so that a thread can write it while training changes the originals. The memory is reused
// for the next snapshot. Copies of GPU tensors use pinned memory.
class HostState {
 public:
  HostState(const at::Device& device, base::MemoryTags& memory) : device_(device), memory_(memory) {}  // the tags must outlive this

  // Allocates memory for these contents. Then the first copy does not wait for it, and a machine that cannot pin that much memory fails at
  // the start of the run.
  void make_room(const snapshot::Contents& contents);
  // Copies the contents. The result is valid until the next call. GPU tensors are copied on a side stream, and waited for once at the end.
  // Host tensors that only `contents` holds were gathered for this snapshot and are passed on without a copy.
  snapshot::Contents take(snapshot::Contents contents);

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
