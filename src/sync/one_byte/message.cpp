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

size_t message_bytes(std::span<const std::byte> bytes, SlopeCode code) {
  constexpr size_t kSlopesAt = 16;
  if (static_cast<int64_t>(bytes.size()) < kSlopeHeaderBytes) fail_message("it ends too soon");
  uint16_t slopes = 0;
  std::memcpy(&slopes, bytes.data() + kSlopesAt, sizeof slopes);
  const auto size = static_cast<size_t>(kSlopeHeaderBytes + encoded_bytes(code, slopes));
  if (bytes.size() < size) fail_message("it ends too soon");
  return size;
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

namespace {

void put_manifest(const RoundManifest& manifest, std::vector<std::byte>& bytes) {
  put(manifest.round, bytes), put(manifest.epoch, bytes), put(manifest.rate, bytes), put(manifest.keep, bytes), put(manifest.hash, bytes);
  put(static_cast<uint16_t>(manifest.accepted.size()), bytes);
  for (const RoundManifest::Entry& entry : manifest.accepted) put(entry.machine, bytes), put(entry.slopes, bytes), put(entry.crc, bytes);
}

RoundManifest take_manifest(std::span<const std::byte>& bytes) {
  RoundManifest manifest;
  manifest.round = take<uint32_t>(bytes), manifest.epoch = take<uint32_t>(bytes);
  manifest.rate = take<float>(bytes), manifest.keep = take<float>(bytes), manifest.hash = take<uint64_t>(bytes);
  const auto accepted = take<uint16_t>(bytes);
  for (int i = 0; i < accepted; ++i) {
    RoundManifest::Entry entry;
    entry.machine = take<uint32_t>(bytes), entry.slopes = take<uint16_t>(bytes), entry.crc = take<uint32_t>(bytes);
    if (i > 0 && manifest.accepted.back().machine >= entry.machine) fail_message("its machines are not in order");
    manifest.accepted.push_back(entry);
  }
  return manifest;
}

}  // namespace

void accept_messages(RoundRecord& record) {
  record.manifest.accepted.clear();
  for (const SlopeMessage& message : record.messages)
    record.manifest.accepted.push_back({message.machine, message.slopes, crc_of(encode_message(message))});
}

std::vector<std::byte> encode_record(const RoundRecord& record) {
  std::vector<std::byte> body, framed;
  put_manifest(record.manifest, body);
  for (const SlopeMessage& message : record.messages) {
    const std::vector<std::byte> bytes = encode_message(message);
    body.insert(body.end(), bytes.begin(), bytes.end());
  }
  put(static_cast<uint32_t>(body.size()), framed), put(base::crc32c(body), framed);
  framed.insert(framed.end(), body.begin(), body.end());
  return framed;
}

RoundRecord take_record(std::span<const std::byte>& records, SlopeCode code) {
  std::span<const std::byte> left = records;
  const auto size = take<uint32_t>(left), crc = take<uint32_t>(left);
  if (left.size() < size) fail_message("it ends in the middle of a round");
  std::span<const std::byte> body = left.first(size);
  if (base::crc32c(body) != crc) fail_message("the checksum of a round is wrong");
  RoundRecord record{take_manifest(body)};
  for (const RoundManifest::Entry& entry : record.manifest.accepted) {
    const auto bytes = static_cast<size_t>(kSlopeHeaderBytes + encoded_bytes(code, entry.slopes));
    if (body.size() < bytes) fail_message("a round ends too soon");
    record.messages.push_back(decode_message(body.first(bytes), code));
    if (record.messages.back().machine != entry.machine || crc_of(body.first(bytes)) != entry.crc)
      fail_message(
          fmt::format("round {} holds another message of machine {} than its manifest says", record.manifest.round, entry.machine));
    body = body.subspan(bytes);
  }
  if (!body.empty()) fail_message(fmt::format("{} bytes too many in round {}", body.size(), record.manifest.round));
  records = left.subspan(size);
  return record;
}

std::vector<RoundRecord> decode_records(std::span<const std::byte> records, SlopeCode code) {
  std::vector<RoundRecord> all;
  while (!records.empty()) all.push_back(take_record(records, code));
  return all;
}

std::span<const std::byte> records_before(std::span<const std::byte> records, uint32_t round, SlopeCode code) {
  std::span<const std::byte> left = records;
  size_t good = 0;
  try {
    while (!left.empty() && take_record(left, code).manifest.round < round) good = records.size() - left.size();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
  }
  return records.first(good);
}

}  // namespace cairn::sync
