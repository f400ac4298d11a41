#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"

namespace cairn::comm {

// The receiving end of a resumable transfer: the bytes that have arrived so far. It outlives the attempts to fetch it: the next attempt,
// from any node that offers the same bytes under the same id, resumes at `received()`. For one attempt at a time.
class IncomingTransfer {
 public:
  // `bytes_max`: a larger offer is refused before anything is allocated. `begun`: the first bytes, if an earlier run kept them.
  IncomingTransfer(std::string id, int64_t bytes_max, std::vector<std::byte> begun = {});

  const std::string& id() const { return id_; }
  int64_t received() const { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int64_t> total() const { return total_; }  // known after the first chunk
  bool complete() const { return complete_; }              // all bytes have arrived and the checksum is right
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take();  // only when complete

  // Appends a chunk. False: its offset is not received(), and it is ignored. Throws if it belongs to another object, or if the final
  // checksum is wrong; then the transfer starts again from zero.
  bool add(std::string_view from, int64_t offset, std::span<const std::byte> piece, int64_t total, uint64_t whole_checksum);

 private:
  void agree(std::string_view from, int64_t total, uint64_t whole_checksum);

  std::string id_;
  int64_t bytes_max_;
  std::vector<std::byte> bytes_;
  base::Checksum checksum_;
  std::optional<int64_t> total_;
  uint64_t whole_checksum_ = 0;
  bool complete_ = false;
};

}  // namespace cairn::comm
