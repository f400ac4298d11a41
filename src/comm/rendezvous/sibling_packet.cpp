#include "comm/rendezvous/sibling_packet.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/checksum.h"
#include "base/error.h"

namespace cairn::comm::sibling {

using namespace std::chrono_literals;

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int File::release() { return std::exchange(fd_, -1); }

void Due::wait(std::span<pollfd> files, std::chrono::nanoseconds most) const {
  const auto left = std::clamp<std::chrono::nanoseconds>(deadline_ - clock_.now(), 0ns, most);
  ::poll(files.data(), files.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

int try_send(int fd, Head head, std::string_view body, std::span<const int> files) {
  std::array<iovec, 2> parts{iovec{&head, sizeof head}, iovec{const_cast<char*>(body.data()), body.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFilesAtOnce * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (!files.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(rights), files.data(), files.size_bytes());
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
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

Got receive(int fd, Packet& packet) {
  packet.body.resize(kPieceBytes);
  std::array<iovec, 2> parts{iovec{&packet.head, sizeof packet.head}, iovec{packet.body.data(), packet.body.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(253 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0) return errno == EAGAIN || errno == EINTR ? Got::nothing : Got::end;
  packet.files.clear();
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part) + at, sizeof file);
      packet.files.emplace_back(file);
    }
  }
  if (static_cast<size_t>(length) < sizeof packet.head || packet.head.magic != kMagic || (message.msg_flags & MSG_TRUNC)) return Got::end;
  packet.body.resize(static_cast<size_t>(length) - sizeof packet.head);
  return Got::packet;
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
