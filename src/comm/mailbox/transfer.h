#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"

namespace cairn::comm {

// The receiving end of a large transfer: what has come of it so far. It outlives the attempts to fetch it: after one has failed, the next,
// from any node that offers the same bytes under the same id, goes on at `received()`. Not for two attempts at once.
class IncomingTransfer {
 public:
  // `bytes_max`: an offer of more is refused before anything is allocated. `begun`: what an earlier run kept of it, from the start.
  IncomingTransfer(std::string id, int64_t bytes_max, std::vector<std::byte> begun = {});

  const std::string& id() const { return id_; }
  int64_t received() const { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int64_t> total() const { return total_; }  // once an offer was seen
  bool complete() const { return complete_; }              // all came, and the checksum is right
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take();  // of a complete one

  // The next piece, as the mailbox got it. Throws where it belongs to another object, or where all came and the checksum is wrong: then it
  // starts afresh. Pieces that are not next are left alone: false.
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
