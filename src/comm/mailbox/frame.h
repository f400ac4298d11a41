#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/label.h"

namespace cairn::comm {

inline constexpr int64_t kNameBytesMax = 64;  // of the name of a node, a tag or a transfer

// What one mailbox sends to another: a message of a node, or a control frame about nodes and transfers.
struct MailboxFrame {
  enum class Kind : uint8_t {
    message,
    join,     // `from` is now a node of the sending rank
    leave,    // it no longer is
    ask,      // requests `total` bytes at `offset` of transfer `tag`
    chunk,    // the reply to an ask
    refusal,  // the reply where there are no bytes: the reason
  };
  Kind kind = Kind::message;
  Purpose purpose = Purpose::control;  // of the body; names and header are booked as control
  uint64_t epoch = 0;
  std::string from = {}, to = {}, tag = {};
  uint64_t number = 0;          // of the fetch attempt, in an ask and its replies
  int64_t offset = 0;           // of the chunk
  int64_t total = 0;            // of an ask: bytes requested; of a chunk: size of the whole transfer
  uint64_t whole_checksum = 0;  // of a chunk: checksum of the whole transfer
  std::vector<std::byte> body = {};
  std::shared_ptr<const std::vector<std::byte>> source = {};  // of an outgoing chunk: the body is source[offset, offset + source_bytes)
  int64_t source_bytes = 0;
  bool damaged = false;  // of a received frame: the checksum of the body is wrong

  std::span<const std::byte> content() const;
};

// The header of fixed size, with the lengths of the names and the body.
struct MailboxFrameHeader {
  MailboxFrame frame;  // without names and body
  uint64_t checksum = 0;
  int64_t from_bytes = 0, to_bytes = 0, tag_bytes = 0, body_bytes = 0;

  int64_t names_bytes() const { return from_bytes + to_bytes + tag_bytes; }
};

inline constexpr int64_t kMailboxHeaderBytes = 72;

std::array<std::byte, kMailboxHeaderBytes> encode_header(const MailboxFrame& frame);
std::string names_of(const MailboxFrame& frame);  // concatenated, as they follow the header

// Throws cairn::Error for an invalid header, or a body above the limit, before anything is allocated.
MailboxFrameHeader decode_header(std::span<const std::byte, kMailboxHeaderBytes> bytes, int64_t body_bytes_max);
// The complete frame.
MailboxFrame assemble(MailboxFrameHeader header, std::string_view names, std::vector<std::byte> body);

// Refuses names that are empty, too long, or have control characters. `what`: "node", "tag", "transfer".
void check_name(std::string_view what, std::string_view name);

}  // namespace cairn::comm
