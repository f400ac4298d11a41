#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn::comm {

// The header of what travels on a channel, where a pair of ranks has several connections (channel_bundle.h).
//   piece  a part of a frame: followed by the frame's own header and `bytes` of its payload, from `offset` on
//   probe  nothing, but acknowledged like a piece
//   ack    `number` pieces and probes have arrived on this channel; the receiver holds `bytes` of all channels that have no place yet
//   lost   the sender of this record has given up channel `number`
//   end    nothing more comes on this channel: its sender leaves in good order
struct ChannelRecord {
  enum class Kind : uint8_t { piece, probe, ack, lost, end };
  Kind kind = Kind::piece;
  uint64_t number = 0;  // of a piece: the number of its frame in this direction, from 1
  int64_t offset = 0;
  int64_t bytes = 0;
};

inline constexpr int64_t kRecordHeaderBytes = 32;

std::array<std::byte, kRecordHeaderBytes> encode(const ChannelRecord& record);

// Parses a header. Throws and says what is wrong with it.
ChannelRecord decode_record(std::span<const std::byte, kRecordHeaderBytes> header, int64_t message_bytes_max);

// Throws: the peer sent what it must not.
[[noreturn]] void refuse_record(const std::string& why);

}  // namespace cairn::comm
