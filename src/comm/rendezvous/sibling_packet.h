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

// What the siblings of a machine say to each other, and where: packets on a local socket, with open files attached.
namespace cairn::comm::sibling {

constexpr size_t kBytesMax = 16 << 20, kFilesMax = 4096;  // of a bundle
constexpr size_t kPieceBytes = 32 << 10;                  // a packet must fit into a socket's buffer
constexpr size_t kFilesAtOnce = 200;                      // Linux carries at most 253 in one packet
constexpr std::chrono::milliseconds kPause{20};           // between two tries where nothing tells when to try again

// An open file that is closed with its owner.
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

// When waiting ends, counted from the start.
class Due {
 public:
  explicit Due(std::chrono::nanoseconds deadline) : deadline_(deadline) {}
  bool over() const { return clock_.now() >= deadline_; }
  void extend(std::chrono::nanoseconds by) { deadline_ += by; }
  double waited_s() const { return base::seconds(clock_.now()); }
  // Until a file is ready or the time is over, or for `most`.
  void wait(std::span<pollfd> files, std::chrono::nanoseconds most = std::chrono::hours(1)) const;

 private:
  base::RealClock clock_;
  std::chrono::nanoseconds deadline_;
};

enum class Kind : int32_t {
  hello,    // from a sibling: who it is
  bundle,   // how many bytes and files follow
  files,    // a letter for each: 'o' with an open file attached, '-' for none
  piece,    // of the bytes
  thanks,   // from a sibling: all is here
  refused,  // a sentence: this caller, or what it was told, is wrong
  lost,     // a sentence: somebody else did not come; rank is who, if known
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

// Sends one packet if there is room, or says why not: an errno.
int try_send(int fd, Head head, std::string_view body = {}, std::span<const int> files = {});

// The same, waiting for room until it is due: then ETIMEDOUT.
int send_packet(const Due& due, int fd, const Head& head, std::string_view body = {}, std::span<const int> files = {});

// One packet if it is there. What is no packet of ours counts as the end.
enum class Got { packet, nothing, end };
Got receive(int fd, Packet& packet);

// Where the siblings of a job meet: a name outside the file system, so that nothing of it stays behind.
struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&name); }
};
Address address_of(const std::string& job);

File make_socket();

// Whose process is at the other end.
ucred peer_of(const File& socket);

}  // namespace cairn::comm::sibling
