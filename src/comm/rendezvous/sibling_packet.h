#pragma once
#include <chrono>
#include <cstdint>
#include <poll.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <vector>

#include "base/clock.h"
#include "comm/rendezvous/unix_packet.h"

// The packets between siblings (siblings.h): datagrams on a Unix socket, with file descriptors attached.
namespace cairn::comm::sibling {

constexpr size_t kBytesMax = 16 << 20, kFilesMax = 4096;  // of a bundle
constexpr size_t kPieceBytes = 32 << 10;                  // must fit into a socket buffer
constexpr size_t kFilesAtOnce = 200;                      // of a packet; at most kPacketFilesMax
constexpr std::chrono::milliseconds kPause{20};           // between two attempts

// A deadline, counted from construction.
class Due {
 public:
  explicit Due(std::chrono::nanoseconds deadline) : deadline_(deadline) {}
  bool over() const { return clock_.now() >= deadline_; }
  void extend(std::chrono::nanoseconds by) { deadline_ += by; }
  double waited_s() const { return base::seconds(clock_.now()); }
  // Waits until a file is ready, until the deadline, or for `most`.
  void wait(std::span<pollfd> files, std::chrono::nanoseconds most = std::chrono::hours(1)) const;

 private:
  base::RealClock clock_;
  std::chrono::nanoseconds deadline_;
};

enum class Kind : int32_t {
  hello,    // from a sibling: its local rank and world rank
  bundle,   // numbers of bytes and files that follow
  files,    // one character per file: 'o' attached, '-' none
  piece,    // bytes of the bundle
  thanks,   // from a sibling: the bundle is complete
  refused,  // text: why this rank is refused
  lost,     // text: another rank is missing; `rank` names it, if known
};

constexpr uint64_t kMagic = 0x31676e696c626973;  // "sibling1"

struct Head {
  uint64_t magic = kMagic;
  Kind kind = Kind::hello;
  int32_t local_rank = -1, local_size = 0, rank = -1;
  uint64_t bytes = 0, files = 0;
};

struct Packet {
  Head head = {};
  std::string body = {};
  std::vector<File> files = {};
};

// Sends one packet if there is room. Returns 0 or an errno.
int try_send(int fd, Head head, std::string_view body = {}, std::span<const int> files = {});

// The same, but waits for room until the deadline; then ETIMEDOUT.
int send_packet(const Due& due, int fd, const Head& head, std::string_view body = {}, std::span<const int> files = {});

// Receives one packet if there is one. An invalid packet counts as the end of the connection.
Received receive(int fd, Packet& packet);

// The abstract socket address of a job: not in the file system, so that nothing stays behind.
struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&name); }
};
Address address_of(const std::string& job);

File make_socket();

// The process at the other end.
ucred peer_of(const File& socket);

}  // namespace cairn::comm::sibling
