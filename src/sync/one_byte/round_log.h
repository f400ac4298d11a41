#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/disk.h"
#include "sync/one_byte/replica.h"

namespace cairn::sync {

// What a log of rounds belongs to: all that a replay needs beside the base weights.
struct RoundLogHeader {
  uint64_t run = 0;
  uint64_t base = 0;         // hash of all parameters before the first round of the log (hash_of_parameters)
  uint64_t fingerprint = 0;  // of the replica
  uint32_t first = 0;        // the first round
  SlopeCode code = SlopeCode::log8;
  kernels::Noise noise = kernels::Noise::normal;
  SlopeScale scale = SlopeScale::mean;
  std::string parameters = "fp32";        // the format that the weights are kept in: fp32 or bf16
  std::vector<std::string> trained = {};  // names
  bool operator==(const RoundLogHeader&) const = default;
};

// The rounds of a run, appended to a file: base weights and log give the weights again, bit by bit. A record is on disk (fsync) before
// `append` returns. A record that a crash cut off is left out when the file is opened.
//
//   file   "cairnrl1", length and CRC-32C of the header, the header (JSON), then records (message.h)
class RoundLog {
 public:
  // A new log, without rounds; a file at this path is replaced. An empty path: the log is only in memory.
  RoundLog(std::filesystem::path path, RoundLogHeader header, const base::Disk& disk = base::real_disk());
  // Opens a file; nothing if there is none. Bytes that are no log are refused as bad_input. Reads only, until the first change.
  static std::optional<RoundLog> open(const std::filesystem::path& path, const base::Disk& disk = base::real_disk());
  RoundLog(RoundLog&& other) noexcept;
  RoundLog& operator=(RoundLog&& other) noexcept;
  ~RoundLog();

  const RoundLogHeader& header() const { return header_; }
  std::span<const std::byte> records() const { return records_; }
  uint32_t next() const { return next_; }  // the round after the last one
  // The epoch of the last round; 0: there is none.
  uint32_t epoch() const { return epoch_; }
  int64_t torn_bytes() const { return torn_bytes_; }  // that were left out at the end

  // Rounds from that of the record on are removed first.
  void append(const RoundRecord& record);
  // Replaces all rounds.
  void assign(std::span<const std::byte> records);

 private:
  RoundLog(std::filesystem::path path, const base::Disk& disk) : path_(std::move(path)), disk_(&disk) {}
  void rewrite();
  void find_end();
  void close();

  std::filesystem::path path_;
  const base::Disk* disk_;
  RoundLogHeader header_;
  std::vector<std::byte> records_;
  uint32_t next_ = 0, epoch_ = 0;
  int64_t torn_bytes_ = 0;
  bool stale_ = false;  // the file has more than the header and the records here
  int file_ = -1;
};

// The hash of parameters: names and values (as fp32), in this order.
uint64_t hash_of_parameters(const std::vector<std::pair<std::string, uint64_t>>& hashes);
// Of one tensor's values as fp32, on any device.
uint64_t hash_of_tensor(const at::Tensor& tensor);

}  // namespace cairn::sync
