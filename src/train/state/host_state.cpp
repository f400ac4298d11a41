#include "train/state/host_state.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "kernels/aten.h"
#include "kernels/streams.h"

namespace cairn::train {
namespace {

// The allocator of pinned memory rounds up to powers of two. Large slabs that many tensors share waste little.
constexpr int64_t kPinnedBytesLeast = int64_t{1} << 28;
constexpr int64_t kAlignment = 64;  // bytes; more than any dtype needs

}  // namespace

at::Tensor HostState::room_like(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return at::empty(tensor.sizes(), tensor.scalar_type());
  const int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const bool pinned = tensor.is_cuda();
  std::vector<Slab>& slabs = pinned ? pinned_ : plain_;
  auto slab = std::find_if(slabs.begin(), slabs.end(), [&](const Slab& one) { return one.bytes.numel() - one.used >= taken; });
  if (slab == slabs.end()) {
    const auto size = pinned ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(taken, kPinnedBytesLeast)))) : taken;
    slab = slabs.insert(slabs.end(), {at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned))});
    booked_.emplace_back(memory_, base::MemoryUse::snapshot, size);
  }
  const at::Tensor room = slab->bytes.narrow(0, slab->used, bytes);
  slab->used += taken;
  return room.view(tensor.scalar_type()).view(tensor.sizes());
}

void HostState::clear() {
  for (std::vector<Slab>* slabs : {&plain_, &pinned_})
    for (Slab& slab : *slabs) slab.used = 0;
}

namespace {

// Every tensor of a rank's snapshot.
std::vector<at::Tensor*> tensors_of(RankSnapshot& saved) {
  std::vector<at::Tensor*> all;
  for (auto& [section, shared] : saved.part.shared)
    for (snapshot::SharedSection::Part& part : shared.parts) all.push_back(&part.data);
  for (snapshot::OwnPiece& piece : saved.part.own) all.push_back(&piece.data);
  if (saved.rest)
    for (auto& [section, tensors] : saved.rest->tensors)
      for (mesh::NamedTensor& one : tensors) all.push_back(&one.tensor);
  return all;
}

}  // namespace

void HostState::make_room(RankSnapshot saved) {
  for (const at::Tensor* tensor : tensors_of(saved)) room_like(*tensor);
}

void HostState::take(RankSnapshot& saved) {
  const at::NoGradGuard no_gradient;
  clear();
  std::optional<c10::Stream> beside;
  if (device_.is_cuda()) {
    beside = kernels::side_stream(device_, kernels::SideStream::to_host);
    c10::Event before(device_.type());
    before.record(kernels::current_stream(device_));
    before.block(*beside);
  }
  const c10::OptionalStreamGuard copying(beside);
  std::vector<at::Tensor> copied;  // keeps the originals until the copies are complete
  for (at::Tensor* tensor : tensors_of(saved)) {
    const at::Tensor copy = room_like(*tensor);
    copy.copy_(*tensor, /*non_blocking=*/true);
    copied.push_back(std::exchange(*tensor, copy));
  }
  if (beside) beside->synchronize();
}

}  // namespace cairn::train
