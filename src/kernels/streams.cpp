#include "kernels/streams.h"

#include <map>
#include <mutex>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace cairn::kernels {

c10::Stream side_stream(const at::Device& device, SideStream what) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceIndex, SideStream>, c10::Stream> streams;
  const std::scoped_lock lock(mutex);
  const std::pair key{device.index(), what};
  if (const auto found = streams.find(key); found != streams.end()) return found->second;
  return streams.emplace(key, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)).first->second;
}

c10::Stream current_stream(const at::Device& device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace cairn::kernels
