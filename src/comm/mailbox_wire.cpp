#include "comm/mailbox_wire.h"

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

static_assert(std::endian::native == std::endian::little, "headers are written as they lie in memory, little-endian");

constexpr uint32_t kMagic = 0x6c69616d;  // "mail"
constexpr uint8_t kVersion = 1;

struct Wire {
  uint32_t magic;
  uint8_t version, kind, purpose, zero;
  uint16_t from_bytes, to_bytes, tag_bytes, zeros;
  uint64_t epoch, number;
  int64_t offset, total;
  uint64_t whole_checksum, checksum;
  int64_t body_bytes;
};
static_assert(sizeof(Wire) == kParcelHeaderBytes);

[[noreturn]] void refuse(const std::string& why) { throw Error(Error::Kind::lost_peer, "sent a bad mailbox header: " + why); }

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; });
}

}  // namespace

std::span<const std::byte> Parcel::content() const {
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

std::array<std::byte, kParcelHeaderBytes> encode_header(const Parcel& parcel) {
  const std::span<const std::byte> content = parcel.content();
  const Wire wire{.magic = kMagic,
                  .version = kVersion,
                  .kind = static_cast<uint8_t>(parcel.kind),
                  .purpose = static_cast<uint8_t>(parcel.purpose),
                  .zero = 0,
                  .from_bytes = static_cast<uint16_t>(parcel.from.size()),
                  .to_bytes = static_cast<uint16_t>(parcel.to.size()),
                  .tag_bytes = static_cast<uint16_t>(parcel.tag.size()),
                  .zeros = 0,
                  .epoch = parcel.epoch,
                  .number = parcel.number,
                  .offset = parcel.offset,
                  .total = parcel.total,
                  .whole_checksum = parcel.whole_checksum,
                  .checksum = base::checksum(content),
                  .body_bytes = static_cast<int64_t>(content.size())};
  return std::bit_cast<std::array<std::byte, kParcelHeaderBytes>>(wire);
}

std::string names_of(const Parcel& parcel) { return parcel.from + parcel.to + parcel.tag; }

ParcelHeader decode_header(std::span<const std::byte, kParcelHeaderBytes> bytes, int64_t body_bytes_max) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kMagic) refuse(fmt::format("it begins with {:#x}, not {:#x}", wire.magic, kMagic));
  if (wire.version != kVersion) refuse(fmt::format("version {}, this is version {}", wire.version, kVersion));
  if (wire.kind > static_cast<uint8_t>(Parcel::Kind::refusal)) refuse(fmt::format("kind {}", wire.kind));
  if (wire.purpose >= kPurposes) refuse(fmt::format("purpose {}", wire.purpose));
  if (wire.zero != 0 || wire.zeros != 0) refuse(fmt::format("{} and {} where there should be nothing", wire.zero, wire.zeros));
  const auto longest = std::max({wire.from_bytes, wire.to_bytes, wire.tag_bytes});
  if (longest > kNameBytesMax) refuse(fmt::format("a name of {} bytes, at most {} are allowed", longest, kNameBytesMax));
  if (wire.from_bytes == 0) refuse("no sender");
  if (wire.body_bytes < 0 || wire.body_bytes > body_bytes_max) {
    refuse(fmt::format("a body of {} bytes, at most {} are allowed", wire.body_bytes, body_bytes_max));
  }
  if (wire.offset < 0 || wire.total < 0) refuse(fmt::format("offset {} of {}", wire.offset, wire.total));
  ParcelHeader header;
  header.parcel = {.kind = static_cast<Parcel::Kind>(wire.kind),
                   .purpose = static_cast<Purpose>(wire.purpose),
                   .epoch = wire.epoch,
                   .number = wire.number,
                   .offset = wire.offset,
                   .total = wire.total,
                   .whole_checksum = wire.whole_checksum};
  header.checksum = wire.checksum;
  header.from_bytes = wire.from_bytes;
  header.to_bytes = wire.to_bytes;
  header.tag_bytes = wire.tag_bytes;
  header.body_bytes = wire.body_bytes;
  return header;
}

Parcel assemble(ParcelHeader header, std::string_view names, std::vector<std::byte> body) {
  if (!printable(names)) refuse("a name with control characters");
  Parcel parcel = std::move(header.parcel);
  const auto from = static_cast<size_t>(header.from_bytes), to = static_cast<size_t>(header.to_bytes);
  parcel.from = names.substr(0, from);
  parcel.to = names.substr(from, to);
  parcel.tag = names.substr(from + to);
  parcel.body = std::move(body);
  parcel.damaged = base::checksum(parcel.body) != header.checksum;
  return parcel;
}

}  // namespace cairn::comm
