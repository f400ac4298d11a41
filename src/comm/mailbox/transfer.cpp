// The receiving end of a resumable transfer; fetch.cpp has the protocol.
#include "comm/mailbox/transfer.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {

IncomingTransfer::IncomingTransfer(std::string id, int64_t bytes_max, std::vector<std::byte> begun)
    : id_(std::move(id)), bytes_max_(bytes_max), bytes_(std::move(begun)) {
  checksum_.add(bytes_);
}

std::vector<std::byte> IncomingTransfer::take() {
  CAIRN_CHECK(complete_, "transfer {} is taken with {} bytes received, before it is complete", id_, received());
  complete_ = false;
  total_.reset();
  checksum_ = base::Checksum();
  return std::exchange(bytes_, {});
}

void IncomingTransfer::agree(std::string_view from, int64_t total, uint64_t whole_checksum) {
  if (total > bytes_max_) {
    base::fail_input("node {} offers transfer {} with {} bytes: at most {} are allowed here", from, id_, total, bytes_max_);
  }
  const bool other = total_ ? total != *total_ || whole_checksum != whole_checksum_ : total < received();
  if (other) {
    base::fail_input(
        "node {} offers transfer {} with {} bytes and checksum {:016x}: not the object of which {} bytes have come ({} bytes, {})", from,
        id_, total, whole_checksum, received(), total_ ? fmt::to_string(*total_) : "unknown",
        total_ ? fmt::format("checksum {:016x}", whole_checksum_) : "no checksum yet");
  }
  if (total_) return;
  total_ = total;
  whole_checksum_ = whole_checksum;
  bytes_.reserve(static_cast<size_t>(total));
}

bool IncomingTransfer::add(std::string_view from, int64_t offset, std::span<const std::byte> piece, int64_t total,
                           uint64_t whole_checksum) {
  agree(from, total, whole_checksum);
  const auto size = static_cast<int64_t>(piece.size());
  if (offset != received() || size > total - offset) return false;
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
  checksum_.add(piece);
  if (received() < total) return true;
  if (checksum_.value() != whole_checksum_) {
    const uint64_t found = checksum_.value();
    bytes_.clear();
    checksum_ = base::Checksum();
    total_.reset();
    throw Error(Error::Kind::corrupt_file,
                fmt::format("transfer {} from node {}: all {} bytes came with checksum {:016x} where {:016x} was "
                            "announced; it starts again from zero",
                            id_, from, total, found, whole_checksum));
  }
  complete_ = true;
  return true;
}

}  // namespace cairn::comm
