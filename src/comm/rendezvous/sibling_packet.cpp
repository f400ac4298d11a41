#include "comm/rendezvous/sibling_packet.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

#include "base/checksum.h"
#include "base/error.h"

namespace cairn::comm::sibling {

using namespace std::chrono_literals;

void Due::wait(std::span<pollfd> files, std::chrono::nanoseconds most) const {
  const auto left = std::clamp<std::chrono::nanoseconds>(deadline_ - clock_.now(), 0ns, most);
  ::poll(files.data(), files.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

int try_send(int fd, Head head, std::string_view body, std::span<const int> files) {
  std::array<iovec, 2> parts{iovec{&head, sizeof head}, iovec{const_cast<char*>(body.data()), body.size()}};
  return try_send_packet(fd, parts, files);
}

int send_packet(const Due& due, int fd, const Head& head, std::string_view body, std::span<const int> files) {
  while (const int error = try_send(fd, head, body, files)) {
    const bool full = error == EAGAIN || error == EINTR;
    if (!full && error != ETOOMANYREFS && error != ENOBUFS && error != ENOMEM) return error;
    if (due.over()) return ETIMEDOUT;
    pollfd room{fd, POLLOUT, 0};
    due.wait({&room, full ? 1u : 0u}, full ? std::chrono::nanoseconds(1h) : kPause);
  }
  return 0;
}

Received receive(int fd, Packet& packet) {
  packet.body.resize(kPieceBytes);
  std::array<iovec, 2> parts{iovec{&packet.head, sizeof packet.head}, iovec{packet.body.data(), packet.body.size()}};
  ReceivedPacket received = try_receive_packet(fd, parts);
  if (received.outcome == Received::nothing) return Received::nothing;
  packet.files = std::move(received.files);
  if (received.bytes < sizeof packet.head || packet.head.magic != kMagic || received.truncated) return Received::end;
  packet.body.resize(received.bytes - sizeof packet.head);
  return Received::packet;
}

Address address_of(const std::string& job) {
  std::string text = fmt::format("cairn/{}/{}", ::geteuid(), job);
  if (text.size() > 100) text = fmt::format("{}/{:016x}", text.substr(0, 80), base::checksum(text));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

File make_socket() {
  File socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) throw Error(Error::Kind::bad_input, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  return socket;
}

ucred peer_of(const File& socket) {
  ucred peer{.pid = -1, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof peer;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

}  // namespace cairn::comm::sibling
