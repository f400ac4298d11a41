#include "comm/net/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace cairn::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written in the memory layout of little-endian machines");

constexpr uint32_t kFrameMagic = 0x6e726963;  // "cirn"
constexpr uint16_t kVersion = 1;

// The header as bytes on the connection.
struct PackedFrame {
  uint32_t magic;
  uint16_t version;
  uint8_t frame_kind, purpose;
  uint64_t group, sequence;
  uint32_t step;
  uint8_t kind, dtype, reduce, codec;
  int32_t root;
  uint32_t label;
  int64_t count, bytes, offset;
  uint64_t number;
  char what[sizeof(Envelope::what)];
};
static_assert(sizeof(PackedFrame) == kFrameBytes);

[[noreturn]] void refuse(std::string why) { throw Error(Error::Kind::lost_peer, "sent a bad frame: " + std::move(why)); }

}  // namespace

std::array<std::byte, kFrameBytes> encode(const Frame& frame) {
  const Envelope& e = frame.envelope;
  PackedFrame packed{.magic = kFrameMagic,
                     .version = kVersion,
                     .frame_kind = static_cast<uint8_t>(frame.kind),
                     .purpose = static_cast<uint8_t>(frame.purpose),
                     .group = e.group,
                     .sequence = e.sequence,
                     .step = e.step,
                     .kind = static_cast<uint8_t>(e.signature.kind),
                     .dtype = static_cast<uint8_t>(e.signature.dtype),
                     .reduce = static_cast<uint8_t>(e.signature.reduce),
                     .codec = e.signature.codec,
                     .root = e.signature.root,
                     .label = e.signature.label,
                     .count = e.signature.count,
                     .bytes = frame.bytes,
                     .offset = frame.offset,
                     .number = frame.number,
                     .what = {}};
  std::memcpy(packed.what, e.what, sizeof(packed.what));
  return std::bit_cast<std::array<std::byte, kFrameBytes>>(packed);
}

Frame decode(std::span<const std::byte, kFrameBytes> header, int64_t message_bytes_max) {
  PackedFrame packed;
  std::memcpy(&packed, header.data(), sizeof(packed));
  if (packed.magic != kFrameMagic) refuse(fmt::format("it begins with {:#x}, not {:#x}", packed.magic, kFrameMagic));
  if (packed.version != kVersion)
    refuse(fmt::format("version {}, this is version {}: all ranks must run the same Cairn", packed.version, kVersion));
  if (packed.frame_kind > static_cast<uint8_t>(Frame::Kind::wake)) refuse(fmt::format("kind {}", packed.frame_kind));
  if (packed.purpose >= kPurposes) refuse(fmt::format("purpose {}", packed.purpose));
  Frame frame{.kind = static_cast<Frame::Kind>(packed.frame_kind),
              .purpose = static_cast<Purpose>(packed.purpose),
              .bytes = packed.bytes,
              .offset = packed.offset,
              .number = packed.number};
  const int64_t most = frame.kind == Frame::Kind::failing ? kReasonBytesMax : message_bytes_max;
  if (packed.bytes < 0 || packed.bytes > most) refuse(fmt::format("{} bytes, at most {} are allowed", packed.bytes, most));
  if (packed.offset < 0) refuse(fmt::format("offset {}", packed.offset));
  frame.envelope = {packed.group,
                    packed.sequence,
                    packed.step,
                    {static_cast<OperationKind>(packed.kind), static_cast<Dtype>(packed.dtype), static_cast<Reduce>(packed.reduce),
                     packed.root, packed.count, packed.label, packed.codec}};
  std::memcpy(frame.envelope.what, packed.what, sizeof(packed.what));
  if (std::string flaw = flaw_in(frame.envelope); !flaw.empty()) refuse(std::move(flaw));
  for (char& c : frame.envelope.what) {
    if (c != 0 && (static_cast<unsigned char>(c) < 32 || c == 127)) c = '?';  // error messages show it
  }
  return frame;
}

}  // namespace cairn::comm
