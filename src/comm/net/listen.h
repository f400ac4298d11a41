#pragma once
#include <cstdint>
#include <string>

namespace cairn::comm {

// A listening socket (close-on-exec) and its port.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};

// Listens by TCP at this address of this machine; port 0: the system chooses.
Listener listen_at(const std::string& address, uint16_t port = 0);

// TCP and UDP sockets with the same port number, which the system chooses.
struct ListenerPair {
  Listener tcp;
  int udp_fd = -1;
};
ListenerPair listen_tcp_and_udp(const std::string& address);

}  // namespace cairn::comm
