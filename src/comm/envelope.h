#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "comm/dtype.h"

namespace cairn::comm {

enum class OperationKind : uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  send_recv,
  reduce,
  coded_all_reduce,
  barrier,
  all_scan
};
// The numbers are part of the format of messages and of flight records: a new kind comes last.
inline constexpr OperationKind kLastOperation = OperationKind::all_scan;

// The description of an operation on which all its ranks must agree. Every message carries it, so that a mismatch is found.
struct Signature {
  OperationKind kind = OperationKind::barrier;
  Dtype dtype = Dtype::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = -1;
  int64_t count = 0;
  uint32_t label = 0;  // of a collective: the hash of its label
  uint8_t codec = 0;   // of a coded_all_reduce: codec_number
  bool operator==(const Signature&) const = default;
};

uint32_t label_hash(std::string_view what);

// The header of a message: which message it is, and what its sender is doing.
struct Envelope {
  uint64_t group = 0;     // the group's id, a hash of its ranks and name
  uint64_t sequence = 0;  // number of the operation in its group
  uint32_t step = 0;      // number of the message in its operation
  Signature signature;
  char what[40] = {};  // the beginning of the label, zero-terminated

  // Identifies the message or region among those of one sender.
  auto key() const { return std::tuple(group, sequence, step); }
};

// Checks an envelope that another process wrote. Returns what is wrong with it (empty: nothing) and terminates its text.
std::string flaw_in(Envelope& envelope);

std::string_view name(OperationKind kind);
std::string describe(const Signature& signature, std::string_view what);  // "all_reduce of w, 12 f32", without control characters

// The error of rank `here`, whose peer `from` called something else in the same operation. It names the peer; mismatch.h decides.
Error mismatch_error(int from, const Envelope& theirs, int here, const Signature& ours, std::string_view our_what);
bool is_mismatch(const Error& error);

}  // namespace cairn::comm
