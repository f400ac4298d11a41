#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"
#include "snapshot/snapshot.h"

namespace cairn::train {

// What a snapshot is to hold, in host memory where training does not change it. The memory is kept and used again for the next one; that
// of a GPU's tensors is pinned, so that they come at the speed of the bus.
class HostState {
 public:
  HostState(const at::Device& device, base::MemoryTags& memory) : device_(device), memory_(memory) {}  // the tags must outlive this

  // Makes room for these, so that the first copy does not wait for it and a machine that cannot pin so much memory says so at the start.
  void make_room(const snapshot::Contents& contents);
  // The same contents as they are now, copied. Whoever holds the result must be done with it before the next call. A GPU's tensors are
  // copied beside what it computes, and waited for once. What nobody else holds is handed on as it is: it was gathered for this.
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
