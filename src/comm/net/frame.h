#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/envelope.h"
#include "comm/label.h"

namespace cairn::comm {

// What precedes each payload on a connection between two ranks.
struct Frame {
  enum class Kind : uint8_t { message, pull, reply, failing, bye, wake };
  Kind kind = Kind::message;
  Purpose purpose = Purpose::control;
  Envelope envelope = {};
  int64_t bytes = 0;    // of the payload; of a pull: how many are wanted
  int64_t offset = 0;   // of a pull
  uint64_t number = 0;  // of a pull and its reply; of a failing frame: the culprit

  int64_t payload_bytes() const { return kind == Kind::pull || kind == Kind::bye || kind == Kind::wake ? 0 : bytes; }
};

inline constexpr int64_t kFrameBytes = 112;
inline constexpr int64_t kReasonBytesMax = 1024;  // of a failing frame

std::array<std::byte, kFrameBytes> encode(const Frame& frame);

// Reads a frame's header, or throws saying what is wrong with it. Nothing in it is used before it is checked.
Frame decode(std::span<const std::byte, kFrameBytes> header, int64_t message_bytes_max);

}  // namespace cairn::comm
