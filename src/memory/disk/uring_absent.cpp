// In the place of uring.cpp where liburing was not found.
#include "memory/disk/back_end.h"

namespace cairn::memory {

std::unique_ptr<IoBackEnd> make_uring(int /*depth*/, const std::vector<std::span<std::byte>>& /*memory*/, std::string& why_not) {
  why_not = "liburing was not found when Cairn was built (Debian: liburing-dev)";
  return nullptr;
}

}  // namespace cairn::memory
