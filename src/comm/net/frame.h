#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/envelope.h"
#include "comm/label.h"

namespace cairn::comm {

// The header that precedes each payload on a connection between two ranks.
struct Frame {
  enum class Kind : uint8_t { message, pull, reply, failing, bye, wake };
  Kind kind = Kind::message;
  Purpose purpose = Purpose::control;
  Envelope envelope = {};
  int64_t bytes = 0;    // of the payload; of a pull: the number of bytes asked for
  int64_t offset = 0;   // of a pull
  uint64_t number = 0;  // of a pull and its reply; of a `failing` frame: the rank that caused it

  int64_t payload_bytes() const { return kind == Kind::pull || kind == Kind::bye || kind == Kind::wake ? 0 : bytes; }
};

inline constexpr int64_t kFrameBytes = 112;
inline constexpr int64_t kReasonBytesMax = 1024;  // of a `failing` frame

std::array<std::byte, kFrameBytes> encode(const Frame& frame);

// Parses a header. Throws and says what is wrong with it; every field is checked before it is used.
Frame decode(std::span<const std::byte, kFrameBytes> header, int64_t message_bytes_max);

}  // namespace cairn::comm
