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
// The length of the message at the beginning of these bytes, by its header. Too short ones are refused likewise.
size_t message_bytes(std::span<const std::byte> bytes, SlopeCode code);
uint32_t crc_of(std::span<const std::byte> encoded_message);  // the one in its header

// Which messages of a round count, and how they are applied. All machines agree on it before anyone applies the round.
struct RoundManifest {
  struct Entry {
    uint32_t machine = 0;
    uint16_t slopes = 0;
    uint32_t crc = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  uint32_t round = 0;
  uint32_t epoch = 0;                // of the founding of the run that the round belongs to (islands/decision_log.h); 0: there is one world
  float rate = 0;                    // the learning rate
  float keep = 1;                    // 1 - rate * weight decay, for matrices
  uint64_t hash = 0;                 // of the trained weights before the round; 0: not measured
  std::vector<Entry> accepted = {};  // by machine, ascending
  friend bool operator==(const RoundManifest&, const RoundManifest&) = default;
};

// One round as it happened: all that a replay needs.
struct RoundRecord {
  RoundManifest manifest;
  std::vector<SlopeMessage> messages = {};  // the accepted ones, in the manifest's order
};
// Fills in manifest.accepted from the messages.
void accept_messages(RoundRecord& record);

// A record in a file or on the wire: its length, the CRC-32C of the rest, manifest, messages. Records follow each other without gaps.
std::vector<std::byte> encode_record(const RoundRecord& record);
// Takes the first record off the bytes. A damaged one is refused as Error::Kind::corrupt_file.
RoundRecord take_record(std::span<const std::byte>& records, SlopeCode code);
// All of them; a damaged one is refused.
std::vector<RoundRecord> decode_records(std::span<const std::byte> records, SlopeCode code);
// The bytes of the leading records that are intact and whose round is below this one.
std::span<const std::byte> records_before(std::span<const std::byte> records, uint32_t round, SlopeCode code);

}  // namespace cairn::sync
