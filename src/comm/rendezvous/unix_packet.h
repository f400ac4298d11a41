// One packet on a Unix socket that keeps packets apart, with file descriptors attached to it.
#pragma once
#include <span>
#include <sys/uio.h>
#include <vector>

namespace cairn::comm {

constexpr size_t kPacketFilesMax = 253;  // what Linux allows

// Owns a file descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  int fd() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// Sends one packet made of `parts` if there is room. Returns 0 or an errno.
int try_send_packet(int fd, std::span<iovec> parts, std::span<const int> files);

enum class Received { packet, nothing, end };

struct ReceivedPacket {
  Received outcome = Received::nothing;
  size_t bytes = 0;
  bool truncated = false;  // it was longer than the parts, or had too many files
  std::vector<File> files = {};
};

// Receives one packet into `parts` if there is one. A packet of no bytes is the end of the connection.
ReceivedPacket try_receive_packet(int fd, std::span<iovec> parts);

}  // namespace cairn::comm
