#include "elastic/packet.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

namespace cairn::elastic {
namespace {

constexpr size_t kTextMax = 32 << 10;  // must fit into a socket buffer
constexpr int64_t kLongTextMax = 64 << 20;
constexpr size_t kFilesMax = 16;

File text_file(const std::string& text) {
  File file(::memfd_create("cairn-packet", MFD_CLOEXEC));
  size_t at = 0;
  while (file.fd() >= 0 && at < text.size()) {
    const ssize_t written = ::write(file.fd(), text.data() + at, text.size() - at);
    if (written <= 0) return File();
    at += static_cast<size_t>(written);
  }
  return file;
}

std::optional<std::string> text_of(const File& file) {
  struct stat facts {};
  if (::fstat(file.fd(), &facts) != 0 || facts.st_size > kLongTextMax) return std::nullopt;
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t got = ::pread(file.fd(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (got <= 0) return std::nullopt;
    at += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace

int send_packet(int fd, const base::Json& body, std::span<const int> files, std::chrono::nanoseconds limit) {
  std::string text = base::compact(body);
  std::vector<int> all(files.begin(), files.end());
  File longer;
  if (text.size() > kTextMax) {
    longer = text_file(text);
    if (longer.fd() < 0) return ENOMEM;
    all.push_back(longer.fd());
    text = "+";
  }
  if (all.size() > kFilesMax) return EINVAL;
  const base::RealClock clock;
  iovec part{text.data(), text.size()};
  while (const int error = comm::try_send_packet(fd, {&part, 1}, all)) {
    if (error != EAGAIN && error != EINTR && error != ENOBUFS) return error;
    if (clock.now() > limit) return ETIMEDOUT;
    pollfd room{fd, POLLOUT, 0};
    ::poll(&room, 1, 10);
  }
  return 0;
}

Received receive_packet(int fd, Packet& packet) {
  std::string text(kTextMax + 1024, '\0');
  iovec part{text.data(), text.size()};
  comm::ReceivedPacket received = comm::try_receive_packet(fd, {&part, 1});
  if (received.outcome != Received::packet) return received.outcome;
  if (received.truncated || received.files.size() > kFilesMax) return Received::end;
  packet.files = std::move(received.files);
  text.resize(received.bytes);
  if (text == "+") {
    if (packet.files.empty()) return Received::end;
    const std::optional<std::string> longer = text_of(packet.files.back());
    if (!longer) return Received::end;
    text = *longer;
    packet.files.pop_back();
  }
  base::GuardedJson parsed = base::parse_json_guarded(text, 16);
  if (!parsed.trouble.empty() || !parsed.value.is_object()) return Received::end;
  packet.body = std::move(parsed.value);
  return Received::packet;
}

}  // namespace cairn::elastic
