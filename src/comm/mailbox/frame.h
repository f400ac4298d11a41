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

inline constexpr int64_t kNameBytesMax = 64;  // of a node, a tag, a transfer

// What one mailbox says to another: a node's mail, or what mailboxes say of their nodes and transfers.
struct MailboxFrame {
  enum class Kind : uint8_t {
    message,
    join,     // `from` is a node of this rank now
    leave,    // and now no more
    ask,      // for `total` bytes at `offset` of the transfer `tag`
    chunk,    // the answer
    refusal,  // or why there is none
  };
  Kind kind = Kind::message;
  Purpose purpose = Purpose::control;  // of the body; all else is control
  uint64_t epoch = 0;
  std::string from = {}, to = {}, tag = {};
  uint64_t number = 0;          // which attempt an ask and its answers belong to
  int64_t offset = 0;           // of the chunk in its transfer
  int64_t total = 0;            // of an ask: bytes wanted; of a chunk: bytes of the whole transfer
  uint64_t whole_checksum = 0;  // of a chunk: over the whole transfer
  std::vector<std::byte> body = {};
  std::shared_ptr<const std::vector<std::byte>> source = {};  // of a chunk to be sent: the body is `source_bytes` of it at `offset`
  int64_t source_bytes = 0;
  bool damaged = false;  // of one that came: the body is not what was sent

  std::span<const std::byte> content() const;
};

// What goes before the names and the body, of fixed size: it says how long those are.
struct MailboxFrameHeader {
  MailboxFrame frame;  // all but names and body
  uint64_t checksum = 0;
  int64_t from_bytes = 0, to_bytes = 0, tag_bytes = 0, body_bytes = 0;

  int64_t names_bytes() const { return from_bytes + to_bytes + tag_bytes; }
};

inline constexpr int64_t kMailboxHeaderBytes = 72;

std::array<std::byte, kMailboxHeaderBytes> encode_header(const MailboxFrame& frame);
std::string names_of(const MailboxFrame& frame);  // as they follow the header

// Throws cairn::Error where it makes no sense or announces more than is allowed: nothing was allocated for it by then.
MailboxFrameHeader decode_header(std::span<const std::byte, kMailboxHeaderBytes> bytes, int64_t body_bytes_max);
// The parcel with its names and body in place.
MailboxFrame assemble(MailboxFrameHeader header, std::string_view names, std::vector<std::byte> body);

// Refuses names that are empty, too long, or would harm a terminal. `what` says whose: "node", "tag".
void check_name(std::string_view what, std::string_view name);

}  // namespace cairn::comm
