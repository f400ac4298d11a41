#include "comm/transport.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

namespace cairn::comm {

Error peer_has_left(int peer, const Envelope& waiting_for) {
  Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: it has ended its work and will not take part in {}", peer,
                                                  describe(waiting_for.signature, waiting_for.what)));
  error.about_peer(peer);
  return error;
}

std::shared_ptr<void> allocate_plain(int64_t bytes) {
  constexpr std::align_val_t kAlignment{128};
  void* memory = ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)), kAlignment);
  return std::shared_ptr<void>(memory, [](void* p) { ::operator delete(p, kAlignment); });
}

}  // namespace cairn::comm
