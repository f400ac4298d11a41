#include "comm/net/byte_stream.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/error.h"

namespace cairn::comm {
namespace {

[[noreturn]] void gone(const char* how) { throw Error(Error::Kind::lost_peer, how); }

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(int fd) : fd_(fd) {}

  int64_t read(void* into, int64_t bytes) override {
    while (true) {
      const ssize_t got = ::recv(fd_, into, static_cast<size_t>(bytes), MSG_DONTWAIT);
      if (got > 0) return got;
      if (got == 0) gone(kConnectionClosed);
      if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
      if (errno != EINTR) gone(errno == ECONNRESET ? kConnectionClosed : std::strerror(errno));
    }
  }

  int64_t write(std::span<const std::byte> first, std::span<const std::byte> second) override {
    std::array<iovec, 2> pieces{{{const_cast<std::byte*>(first.data()), first.size()},  // sendmsg only reads
                                 {const_cast<std::byte*>(second.data()), second.size()}}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = second.empty() ? 1 : 2;
    while (true) {
      const ssize_t sent = ::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) return sent;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
      if (errno != EINTR) gone(errno == EPIPE || errno == ECONNRESET ? kConnectionClosed : std::strerror(errno));
    }
  }

  void end_writing() override { ::shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
};

}  // namespace

std::unique_ptr<ByteStream> make_plain_stream(int fd) { return std::make_unique<PlainStream>(fd); }

}  // namespace cairn::comm
