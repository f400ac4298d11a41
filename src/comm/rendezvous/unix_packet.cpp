#include "comm/rendezvous/unix_packet.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "base/check.h"

namespace cairn::comm {

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int File::release() { return std::exchange(fd_, -1); }

int try_send_packet(int fd, std::span<iovec> parts, std::span<const int> files) {
  CAIRN_CHECK(files.size() <= kPacketFilesMax, "{} files in one packet", files.size());
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPacketFilesMax * sizeof(int))> control{};
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

ReceivedPacket try_receive_packet(int fd, std::span<iovec> parts) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPacketFilesMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0) return {.outcome = errno == EAGAIN || errno == EINTR ? Received::nothing : Received::end};
  ReceivedPacket packet{.outcome = length == 0 ? Received::end : Received::packet,
                        .bytes = static_cast<size_t>(length),
                        .truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0};
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part) + at, sizeof file);
      packet.files.emplace_back(file);
    }
  }
  return packet;
}

}  // namespace cairn::comm
