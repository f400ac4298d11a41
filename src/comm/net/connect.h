#pragma once
#include <memory>
#include <vector>

#include "comm/net/byte_stream.h"
#include "comm/net/transport.h"

namespace cairn::comm {

struct Connection {
  int fd = -1;  // none to itself
  std::unique_ptr<ByteStream> stream;
};

// Connects this rank with all others: calls those below it, is called by those above it; on its own machine over loopback, to others in
// TLS. One connection per rank, each end known to have the run's key. Throws naming who did not come. The listening sockets are closed
// afterwards.
std::vector<Connection> connect_peers(const NetSetup& setup, const NetOptions& options);

}  // namespace cairn::comm
