#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/one_byte/code.h"

namespace cairn::sync {

// A machine's message of a round: 26 bytes and its slopes. On the wire, little-endian:
//   run 8, round 4, machine 4, slopes 2, weight 2, mean loss (bf16) 2, CRC-32C of everything else 4, then the encoded slopes.
struct SlopeMessage {
  uint64_t run = 0;
  uint32_t round = 0;
  uint32_t machine = 0;
  uint16_t slopes = 0;
  uint16_t weight = 1;  // of each of its slopes: the size of its data relative to others'
  float mean_loss = 0;  // rounded to bf16
  std::vector<std::byte> codes = {};
  friend bool operator==(const SlopeMessage&, const SlopeMessage&) = default;
};
inline constexpr int64_t kSlopeHeaderBytes = 26;

std::vector<std::byte> encode_message(const SlopeMessage& message);
// Damaged bytes are refused as Error::Kind::corrupt_file.
SlopeMessage decode_message(std::span<const std::byte> bytes, SlopeCode code);
uint32_t crc_of(std::span<const std::byte> encoded_message);  // the one in its header

// The leader's decision of a round: which messages count, the learning rate, and the members of the next round.
struct RoundManifest {
  struct Entry {
    uint32_t machine = 0;
    uint32_t crc = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  uint32_t round = 0;
  uint32_t leader = 0;
  float rate = 0;                      // the learning rate
  float keep = 1;                      // 1 - rate * weight decay, for matrices
  std::vector<Entry> accepted = {};    // by machine, ascending
  std::vector<uint32_t> members = {};  // of the next round, ascending
  friend bool operator==(const RoundManifest&, const RoundManifest&) = default;
};
std::vector<std::byte> encode_manifest(const RoundManifest& manifest);
RoundManifest decode_manifest(std::span<const std::byte> bytes);

// One round as it happened: all that a replay needs. The log of a run is its records one after the other; base checkpoint and log give the
// weights.
struct RoundRecord {
  RoundManifest manifest;
  std::vector<SlopeMessage> messages;  // the accepted ones, in the manifest's order
};
void append_record(const RoundRecord& record, std::vector<std::byte>& log);
// All rounds of a log; a damaged one is refused.
std::vector<RoundRecord> decode_log(std::span<const std::byte> log, SlopeCode code);
// The bytes of the rounds before this one, up to the first damaged record.
std::span<const std::byte> log_before(std::span<const std::byte> log, uint32_t round, SlopeCode code);

}  // namespace cairn::sync
