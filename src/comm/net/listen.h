#pragma once
#include <cstdint>
#include <string>

namespace cairn::comm {

// A listening socket (close-on-exec) and its port.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};

bool is_own_address(const std::string& address);  // an address of this machine

// Listens by TCP at this address of this machine; port 0: the system chooses.
Listener listen_at(const std::string& address, uint16_t port = 0);

// Where this machine listens if others know it as `host`: at `host` itself if that is an address of this machine, else at the address from
// which this machine reaches `host`. Never at all addresses, unless `host` says so. Throws if the name is unknown or there is no route.
std::string address_to_listen(const std::string& host, uint16_t port);

// TCP and UDP sockets with the same port number, which the system chooses.
struct ListenerPair {
  Listener tcp;
  int udp_fd = -1;
};
ListenerPair listen_tcp_and_udp(const std::string& address);

}  // namespace cairn::comm
