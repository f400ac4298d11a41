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
  barrier
};

// What an operation is, as all its ranks must agree. It travels with each message, so that a rank that calls something else is named.
struct Signature {
  OperationKind kind = OperationKind::barrier;
  Dtype dtype = Dtype::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = -1;
  int64_t count = 0;
  uint32_t label = 0;  // of a collective: a hash of what it is said to be of
  uint8_t codec = 0;   // of a coded_all_reduce: codec_number
  bool operator==(const Signature&) const = default;
};

uint32_t label_hash(std::string_view what);

// What stands on a message: which it is, and what its sender was doing.
struct Envelope {
  uint64_t group = 0;     // the hash of the group's ranks and name
  uint64_t sequence = 0;  // which operation of the group
  uint32_t step = 0;      // which message of the operation
  Signature signature;
  char what[40] = {};  // the start of the label, zero-terminated

  // Which receive or region it belongs to, among those of one sender.
  auto key() const { return std::tuple(group, sequence, step); }
};

// Of an envelope that came from elsewhere, before it is used: what makes no sense in it; empty where all does. Its text has an end then.
std::string flaw_in(Envelope& envelope);

std::string_view name(OperationKind kind);
std::string describe(const Signature& signature, std::string_view what);  // "all_reduce of w, 12 f32", without control characters

// The error of rank `here`, whose peer called something else in the same place; about that peer, until others have been heard.
Error mismatch_error(int from, const Envelope& theirs, int here, const Signature& ours, std::string_view our_what);
bool is_mismatch(const Error& error);

}  // namespace cairn::comm
