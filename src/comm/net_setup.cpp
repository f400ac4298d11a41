// What is made before the ranks start: listening sockets on loopback and the key of the run.
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <openssl/rand.h>

#include "base/check.h"
#include "comm/net.h"
#include "comm/shared_segment.h"

namespace cairn::comm {

std::pair<int, uint16_t> listen_on_loopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, generic, length) != 0 || ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, generic, &length) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw Error(Error::Kind::bad_input, fmt::format("cannot listen on 127.0.0.1: {}", why));
  }
  return {fd, ntohs(address.sin_port)};
}

std::vector<NetSetup> make_net_setups(int size) {
  NetSetup common;
  common.size = size;
  CAIRN_CHECK(RAND_bytes(common.key.data(), static_cast<int>(common.key.size())) == 1, "no random numbers from the system");
  std::vector<int> listeners;
  for (int rank = 0; rank < size; ++rank) {
    const auto [fd, port] = listen_on_loopback();
    listeners.push_back(fd);
    common.ports.push_back(port);
  }
  const int segment = size > 1 ? SharedSegment::create(size) : -1;
  std::vector<NetSetup> setups(static_cast<size_t>(size), common);
  for (int rank = 0; rank < size; ++rank) {
    setups[rank].rank = rank;
    setups[rank].listener_fd = listeners[rank];
    setups[rank].segment_fd = rank == 0 ? segment : ::fcntl(segment, F_DUPFD_CLOEXEC, 0);
  }
  return setups;
}

}  // namespace cairn::comm
