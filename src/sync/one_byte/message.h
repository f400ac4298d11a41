#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/one_byte/code.h"

namespace cairn::sync {

// What a machine tells the others once a round: 26 bytes and its slopes. On the wire little-endian:
//   run 8, round 4, machine 4, slopes 2, weight 2, mean loss (bf16) 2, CRC-32C of all the rest 4, then the slopes.
struct SlopeMessage {
  uint64_t run = 0;
  uint32_t round = 0;
  uint32_t machine = 0;
  uint16_t slopes = 0;
  uint16_t weight = 1;  // how much each of its slopes counts: the size of its data beside others'
  float mean_loss = 0;  // rounded to bf16
  std::vector<std::byte> codes = {};
  friend bool operator==(const SlopeMessage&, const SlopeMessage&) = default;
};
inline constexpr int64_t kSlopeHeaderBytes = 26;

std::vector<std::byte> encode_message(const SlopeMessage& message);
// Damaged bytes are refused as Error::Kind::corrupt_file.
SlopeMessage decode_message(std::span<const std::byte> bytes, SlopeCode code);
uint32_t crc_of(std::span<const std::byte> encoded_message);  // as it says itself

// What the leader of a round decides: which messages count, how far they move the weights, and who takes part in the next round.
struct RoundManifest {
  struct Entry {
    uint32_t machine = 0;
    uint32_t crc = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  uint32_t round = 0;
  uint32_t leader = 0;
  float rate = 0;                      // the learning rate
  float keep = 1;                      // what weight decay leaves of matrices
  std::vector<Entry> accepted = {};    // by machine, ascending
  std::vector<uint32_t> members = {};  // of the next round, ascending
  friend bool operator==(const RoundManifest&, const RoundManifest&) = default;
};
std::vector<std::byte> encode_manifest(const RoundManifest& manifest);
RoundManifest decode_manifest(std::span<const std::byte> bytes);

// One round as it happened: everything that replaying it needs. A run's log is its rounds one after the other, and is the run.
struct RoundRecord {
  RoundManifest manifest;
  std::vector<SlopeMessage> messages;  // the accepted ones, in the manifest's order
};
void append_record(const RoundRecord& record, std::vector<std::byte>& log);
// All rounds of a log, which must be whole.
std::vector<RoundRecord> decode_log(std::span<const std::byte> log, SlopeCode code);
// Its rounds before this one, as bytes; what is damaged, and all after it, is left out.
std::span<const std::byte> log_before(std::span<const std::byte> log, uint32_t round, SlopeCode code);

}  // namespace cairn::sync
