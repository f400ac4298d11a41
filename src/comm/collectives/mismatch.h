#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "comm/coroutine.h"
#include "comm/envelope.h"
#include "comm/transport.h"

namespace cairn::comm {

// Finds the culprit when not all ranks of a group started the same operation (another kind, size, dtype or label).
//
// Two ranks that differ cannot tell which of them is wrong, so the group votes:
//   - a rank that learns of a mismatch in operation s sends its own signature of s to every member (report_signature), as soon as it has
//     started s itself;
//   - ranks with equal signatures form a side. A side with more than half of the group is right; so is the largest one, once every member
//     that has not left has reported. A tie is decided for the side of the deciding rank.
// Nobody is named on fewer reports than that, so that all ranks name the same culprit.
class CollectiveMismatch {
 public:
  // All ranks here are world ranks.
  CollectiveMismatch(const std::vector<int>& ranks, int me, const Envelope& ours);

  uint64_t sequence() const { return ours_.sequence; }
  void hear(int rank, const Envelope& called);  // from its report, a message of that operation, or its status board
  void agrees(int rank) { hear(rank, ours_); }

  // The error that names the culprit (it may be this rank), once that is certain. Ranks that have left will not report. In a tie (as
  // between two ranks) each side names the other.
  std::optional<Error> decide(const std::function<bool(int)>& has_left) const;
  bool waits(const std::function<bool(int)>& has_left) const { return !silent(has_left).empty(); }  // for a report
  // At the deadline: the error that names the ranks that did not report, and what is known. None if all have reported.
  std::optional<Error> undecided(const std::function<bool(int)>& has_left, std::chrono::nanoseconds waited) const;

 private:
  std::set<int> silent(const std::function<bool(int)>& has_left) const;
  std::vector<std::set<int>> sides() const;  // ranks with equal signatures: ours first, the others by their first rank
  Error between(int other) const;            // this rank's call against the other's

  std::vector<int> ranks_;
  int me_;
  Envelope ours_;
  std::map<int, Envelope> called_;  // by rank, this one included
};

// The step number of a report. No collective receives it, so it arrives as an unexpected message.
inline constexpr uint32_t kSignatureReport = UINT32_MAX;

// Sends this rank's signature to all others, from the transport's next progress on (the caller may be inside of it).
Coroutine report_signature(Transport& transport, const std::vector<int>& ranks, Envelope called);

}  // namespace cairn::comm
