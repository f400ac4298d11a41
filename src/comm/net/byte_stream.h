#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn::comm {

inline constexpr const char* kConnectionClosed =
    "its connection was closed";  // the error text where the peer closed the connection or ended

// A byte stream over a connected, non-blocking socket: plain, or TLS (tls.h). The caller waits for the socket, calls read and write when it
// is ready, and owns the socket.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Returns the number of bytes read, at least one; -1: nothing is there now. Throws cairn::Error if the peer is gone.
  virtual int64_t read(void* into, int64_t bytes) = 0;
  // Writes `first`, then `second`. Returns the number of bytes written; -1: the socket is full. Throws if the peer is gone.
  virtual int64_t write(std::span<const std::byte> first, std::span<const std::byte> second) = 0;
  // After a write that returned -1 the same bytes must be passed again: some of them may be under way.
  virtual bool must_repeat() const { return false; }
  // Bytes are buffered here that the socket does not signal any more.
  virtual bool has_buffered() const { return false; }
  // Ends this direction; the peer reads to the end.
  virtual void end_writing() = 0;
};

std::unique_ptr<ByteStream> make_plain_stream(int fd);

}  // namespace cairn::comm
