#include "comm/net/channel_record.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace cairn::comm {
namespace {

constexpr uint32_t kRecordMagic = 0x68636e63;  // "cnch"

struct PackedRecord {
  uint32_t magic;
  uint8_t kind;
  std::array<uint8_t, 3> unused;
  uint64_t number;
  int64_t offset, bytes;
};
static_assert(sizeof(PackedRecord) == kRecordHeaderBytes);

}  // namespace

void refuse_record(const std::string& why) { throw Error(Error::Kind::lost_peer, "sent a bad channel record: " + why); }

std::array<std::byte, kRecordHeaderBytes> encode(const ChannelRecord& record) {
  return std::bit_cast<std::array<std::byte, kRecordHeaderBytes>>(PackedRecord{.magic = kRecordMagic,
                                                                               .kind = static_cast<uint8_t>(record.kind),
                                                                               .unused = {},
                                                                               .number = record.number,
                                                                               .offset = record.offset,
                                                                               .bytes = record.bytes});
}

ChannelRecord decode_record(std::span<const std::byte, kRecordHeaderBytes> header, int64_t message_bytes_max) {
  PackedRecord packed;
  std::memcpy(&packed, header.data(), sizeof packed);
  if (packed.magic != kRecordMagic) refuse_record(fmt::format("it begins with {:#x}, not {:#x}", packed.magic, kRecordMagic));
  if (packed.kind > static_cast<uint8_t>(ChannelRecord::Kind::end)) refuse_record(fmt::format("kind {}", packed.kind));
  const bool piece = packed.kind == static_cast<uint8_t>(ChannelRecord::Kind::piece);
  if (packed.bytes < 0 || (piece && packed.bytes > message_bytes_max))
    refuse_record(fmt::format("{} bytes, at most {} are allowed", packed.bytes, message_bytes_max));
  if (packed.offset < 0 || packed.offset > message_bytes_max) refuse_record(fmt::format("offset {}", packed.offset));
  return {static_cast<ChannelRecord::Kind>(packed.kind), packed.number, packed.offset, packed.bytes};
}

}  // namespace cairn::comm
