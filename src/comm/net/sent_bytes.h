#pragma once
#include <cstdint>

namespace cairn::comm {

// Bytes that were sent on a TCP socket so far, repeated ones included; 0 where the system does not say.
int64_t sent_bytes(int fd);

}  // namespace cairn::comm
