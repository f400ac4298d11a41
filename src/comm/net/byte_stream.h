#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn::comm {

inline constexpr const char* kHungUp = "its connection was closed";  // what a wire says where the peer ended it, or ended itself

// A stream of bytes to and from one peer, over a connected socket that never blocks: as they are, or in TLS (tls.h). Knows nothing of who
// waits: somebody calls read and write when the socket is ready. The socket belongs to somebody else, who closes it afterwards.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // How many bytes were read, at least one; -1: not now. Throws cairn::Error where the peer is gone.
  virtual int64_t read(void* into, int64_t bytes) = 0;
  // How many bytes were written of these two pieces, one after the other; -1: not now. Throws where the peer is gone.
  virtual int64_t write(std::span<const std::byte> first, std::span<const std::byte> second) = 0;
  // After a write that said -1 the same bytes must come again: some of them may be on their way.
  virtual bool must_repeat() const { return false; }
  // Bytes that the socket does not show any more can be read at once.
  virtual bool has_buffered() const { return false; }
  // Nothing more will be written; the peer reads to the end.
  virtual void end_writing() = 0;
};

std::unique_ptr<ByteStream> make_plain_stream(int fd);

}  // namespace cairn::comm
