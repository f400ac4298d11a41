#include "sync/one_byte/message.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::sync {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

constexpr size_t kCrcAt = 22;

[[noreturn]] void fail_message(std::string_view what) {
  throw Error(Error::Kind::corrupt_file, fmt::format("a message of a round is damaged: {}", what));
}

template <typename T>
void put(T value, std::vector<std::byte>& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T take(std::span<const std::byte>& bytes) {
  if (bytes.size() < sizeof(T)) fail_message("it ends too soon");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return value;
}

uint16_t as_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The CRC of everything but the four bytes that hold it.
uint32_t computed_crc(std::span<const std::byte> encoded) {
  std::vector<std::byte> rest(encoded.begin(), encoded.end());
  std::memset(rest.data() + kCrcAt, 0, 4);
  return base::crc32c(rest);
}

}  // namespace

std::vector<std::byte> encode_message(const SlopeMessage& message) {
  std::vector<std::byte> bytes;
  put(message.run, bytes), put(message.round, bytes), put(message.machine, bytes);
  put(message.slopes, bytes), put(message.weight, bytes), put(as_bf16(message.mean_loss), bytes);
  put(uint32_t{0}, bytes);
  CAIRN_CHECK(static_cast<int64_t>(bytes.size()) == kSlopeHeaderBytes, "a header of {} bytes", bytes.size());
  bytes.insert(bytes.end(), message.codes.begin(), message.codes.end());
  const uint32_t crc = computed_crc(bytes);
  std::memcpy(bytes.data() + kCrcAt, &crc, 4);
  return bytes;
}

uint32_t crc_of(std::span<const std::byte> encoded_message) {
  if (static_cast<int64_t>(encoded_message.size()) < kSlopeHeaderBytes) fail_message("it ends too soon");
  uint32_t crc = 0;
  std::memcpy(&crc, encoded_message.data() + kCrcAt, 4);
  return crc;
}

SlopeMessage decode_message(std::span<const std::byte> bytes, SlopeCode code) {
  const std::span<const std::byte> whole = bytes;
  if (crc_of(whole) != computed_crc(whole)) fail_message("its checksum is wrong");
  SlopeMessage message;
  message.run = take<uint64_t>(bytes), message.round = take<uint32_t>(bytes), message.machine = take<uint32_t>(bytes);
  message.slopes = take<uint16_t>(bytes), message.weight = take<uint16_t>(bytes), message.mean_loss = from_bf16(take<uint16_t>(bytes));
  take<uint32_t>(bytes);
  if (static_cast<int64_t>(bytes.size()) != encoded_bytes(code, message.slopes))
    fail_message(fmt::format("{} bytes for {} slopes", bytes.size(), message.slopes));
  message.codes.assign(bytes.begin(), bytes.end());
  return message;
}

std::vector<std::byte> encode_manifest(const RoundManifest& manifest) {
  std::vector<std::byte> bytes;
  put(manifest.round, bytes), put(manifest.leader, bytes), put(manifest.rate, bytes), put(manifest.keep, bytes);
  put(static_cast<uint16_t>(manifest.accepted.size()), bytes), put(static_cast<uint16_t>(manifest.members.size()), bytes);
  for (const RoundManifest::Entry& entry : manifest.accepted) put(entry.machine, bytes), put(entry.crc, bytes);
  for (const uint32_t member : manifest.members) put(member, bytes);
  return bytes;
}

namespace {

RoundManifest take_manifest(std::span<const std::byte>& bytes) {
  RoundManifest manifest;
  manifest.round = take<uint32_t>(bytes), manifest.leader = take<uint32_t>(bytes);
  manifest.rate = take<float>(bytes), manifest.keep = take<float>(bytes);
  const auto accepted = take<uint16_t>(bytes), members = take<uint16_t>(bytes);
  for (int i = 0; i < accepted; ++i) {
    const auto machine = take<uint32_t>(bytes);
    manifest.accepted.push_back({machine, take<uint32_t>(bytes)});
    if (i > 0 && manifest.accepted[manifest.accepted.size() - 2].machine >= machine) fail_message("its machines are not in order");
  }
  for (int i = 0; i < members; ++i) manifest.members.push_back(take<uint32_t>(bytes));
  return manifest;
}

}  // namespace

RoundManifest decode_manifest(std::span<const std::byte> bytes) {
  RoundManifest manifest = take_manifest(bytes);
  if (!bytes.empty()) fail_message(fmt::format("{} bytes after a manifest", bytes.size()));
  return manifest;
}

void append_record(const RoundRecord& record, std::vector<std::byte>& log) {
  const std::vector<std::byte> manifest = encode_manifest(record.manifest);
  log.insert(log.end(), manifest.begin(), manifest.end());
  for (const SlopeMessage& message : record.messages) {
    const std::vector<std::byte> bytes = encode_message(message);
    put(static_cast<uint32_t>(bytes.size()), log);
    log.insert(log.end(), bytes.begin(), bytes.end());
  }
}

namespace {

RoundRecord take_record(std::span<const std::byte>& log, SlopeCode code) {
  RoundRecord record{take_manifest(log), {}};
  for (const RoundManifest::Entry& entry : record.manifest.accepted) {
    const auto size = take<uint32_t>(log);
    if (log.size() < size) fail_message("a log ends in the middle of a round");
    record.messages.push_back(decode_message(log.first(size), code));
    if (record.messages.back().machine != entry.machine || crc_of(log.first(size)) != entry.crc)
      fail_message(
          fmt::format("round {} holds another message of machine {} than its manifest says", record.manifest.round, entry.machine));
    log = log.subspan(size);
  }
  return record;
}

}  // namespace

std::vector<RoundRecord> decode_log(std::span<const std::byte> log, SlopeCode code) {
  std::vector<RoundRecord> records;
  while (!log.empty()) records.push_back(take_record(log, code));
  return records;
}

std::span<const std::byte> log_before(std::span<const std::byte> log, uint32_t round, SlopeCode code) {
  std::span<const std::byte> left = log;
  size_t good = 0;
  try {
    while (!left.empty() && take_record(left, code).manifest.round < round) good = log.size() - left.size();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
  }
  return log.first(good);
}

}  // namespace cairn::sync
