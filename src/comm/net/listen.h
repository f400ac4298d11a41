#pragma once
#include <cstdint>
#include <string>

namespace cairn::comm {

// An open socket and its port. Closed on exec unless told otherwise.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};

// TCP on this address of this machine; port 0: the system chooses.
Listener listen_at(const std::string& address, uint16_t port = 0);

// TCP and UDP under the same number, which the system chose.
struct ListenerPair {
  Listener tcp;
  int udp_fd = -1;
};
ListenerPair listen_twice_at(const std::string& address);

}  // namespace cairn::comm
