#include "comm/mailbox/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"

namespace cairn::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written in the memory layout of little-endian machines");

constexpr uint32_t kMailMagic = 0x6c69616d;  // "mail"
constexpr uint8_t kVersion = 1;

struct PackedHeader {
  uint32_t magic;
  uint8_t version, kind, purpose, zero;
  uint16_t from_bytes, to_bytes, tag_bytes, zeros;
  uint64_t epoch, number;
  int64_t offset, total;
  uint64_t whole_checksum, checksum;
  int64_t body_bytes;
};
static_assert(sizeof(PackedHeader) == kMailboxHeaderBytes);

[[noreturn]] void refuse(const std::string& why) { throw Error(Error::Kind::lost_peer, "sent a bad mailbox header: " + why); }

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; });
}

}  // namespace

std::span<const std::byte> MailboxFrame::content() const {
  if (source) return std::span(*source).subspan(static_cast<size_t>(offset), static_cast<size_t>(source_bytes));
  return body;
}

void check_name(std::string_view what, std::string_view name) {
  if (name.empty()) base::fail_input("a {} without a name: 1 to {} bytes are allowed", what, kNameBytesMax);
  if (static_cast<int64_t>(name.size()) > kNameBytesMax) {
    base::fail_input("{} {}...: a name of {} bytes, at most {} are allowed", what, name.substr(0, 16), name.size(), kNameBytesMax);
  }
  if (!printable(name)) base::fail_input("a {} whose name of {} bytes has control characters: choose printable ones", what, name.size());
}

std::array<std::byte, kMailboxHeaderBytes> encode_header(const MailboxFrame& frame) {
  const std::span<const std::byte> content = frame.content();
  const PackedHeader packed{.magic = kMailMagic,
                            .version = kVersion,
                            .kind = static_cast<uint8_t>(frame.kind),
                            .purpose = static_cast<uint8_t>(frame.purpose),
                            .zero = 0,
                            .from_bytes = static_cast<uint16_t>(frame.from.size()),
                            .to_bytes = static_cast<uint16_t>(frame.to.size()),
                            .tag_bytes = static_cast<uint16_t>(frame.tag.size()),
                            .zeros = 0,
                            .epoch = frame.epoch,
                            .number = frame.number,
                            .offset = frame.offset,
                            .total = frame.total,
                            .whole_checksum = frame.whole_checksum,
                            .checksum = base::checksum(content),
                            .body_bytes = static_cast<int64_t>(content.size())};
  return std::bit_cast<std::array<std::byte, kMailboxHeaderBytes>>(packed);
}

std::string names_of(const MailboxFrame& frame) { return frame.from + frame.to + frame.tag; }

MailboxFrameHeader decode_header(std::span<const std::byte, kMailboxHeaderBytes> bytes, int64_t body_bytes_max) {
  PackedHeader packed;
  std::memcpy(&packed, bytes.data(), sizeof(packed));
  if (packed.magic != kMailMagic) refuse(fmt::format("it begins with {:#x}, not {:#x}", packed.magic, kMailMagic));
  if (packed.version != kVersion) refuse(fmt::format("version {}, this is version {}", packed.version, kVersion));
  if (packed.kind > static_cast<uint8_t>(MailboxFrame::Kind::refusal)) refuse(fmt::format("kind {}", packed.kind));
  if (packed.purpose >= kPurposes) refuse(fmt::format("purpose {}", packed.purpose));
  if (packed.zero != 0 || packed.zeros != 0) refuse(fmt::format("{} and {} where there should be nothing", packed.zero, packed.zeros));
  const auto longest = std::max({packed.from_bytes, packed.to_bytes, packed.tag_bytes});
  if (longest > kNameBytesMax) refuse(fmt::format("a name of {} bytes, at most {} are allowed", longest, kNameBytesMax));
  if (packed.from_bytes == 0) refuse("no sender");
  if (packed.body_bytes < 0 || packed.body_bytes > body_bytes_max) {
    refuse(fmt::format("a body of {} bytes, at most {} are allowed", packed.body_bytes, body_bytes_max));
  }
  if (packed.offset < 0 || packed.total < 0) refuse(fmt::format("offset {} of {}", packed.offset, packed.total));
  MailboxFrameHeader header;
  header.frame = {.kind = static_cast<MailboxFrame::Kind>(packed.kind),
                  .purpose = static_cast<Purpose>(packed.purpose),
                  .epoch = packed.epoch,
                  .number = packed.number,
                  .offset = packed.offset,
                  .total = packed.total,
                  .whole_checksum = packed.whole_checksum};
  header.checksum = packed.checksum;
  header.from_bytes = packed.from_bytes;
  header.to_bytes = packed.to_bytes;
  header.tag_bytes = packed.tag_bytes;
  header.body_bytes = packed.body_bytes;
  return header;
}

MailboxFrame assemble(MailboxFrameHeader header, std::string_view names, std::vector<std::byte> body) {
  if (!printable(names)) refuse("a name with control characters");
  MailboxFrame frame = std::move(header.frame);
  const auto from = static_cast<size_t>(header.from_bytes), to = static_cast<size_t>(header.to_bytes);
  frame.from = names.substr(0, from);
  frame.to = names.substr(from, to);
  frame.tag = names.substr(from + to);
  frame.body = std::move(body);
  frame.damaged = base::checksum(frame.body) != header.checksum;
  return frame;
}

}  // namespace cairn::comm
