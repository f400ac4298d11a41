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

// Not all ranks of a group called the same in one operation. Who is the odd one, all of them together tell: whoever learns of the dispute
// says to every member what it called itself (the next function), as soon as it has got there. Nobody is named on less than the word of
// more than half of the group, or of all that are still there; so that whoever names a rank is right, and others may repeat it.
class CollectiveMismatch {
 public:
  // Ranks are the world's.
  CollectiveMismatch(const std::vector<int>& ranks, int me, const Envelope& ours);

  uint64_t sequence() const { return ours_.sequence; }
  void hear(int rank, const Envelope& called);  // by its word, by a message of that operation, or by its board
  void agrees(int rank) { hear(rank, ours_); }

  // Names the odd one, where that is certain; this rank itself perhaps. Of those who have left no more is to be heard. Among as many as
  // there are against them (as of two) each side names the other.
  std::optional<Error> decide(const std::function<bool(int)>& has_left) const;
  bool waits(const std::function<bool(int)>& has_left) const { return !silent(has_left).empty(); }  // for somebody's word
  // At the deadline: names the first of those who did not say what they called, and what is known. None where that is not the matter.
  std::optional<Error> undecided(const std::function<bool(int)>& has_left, std::chrono::nanoseconds waited) const;

 private:
  std::set<int> silent(const std::function<bool(int)>& has_left) const;
  std::vector<std::set<int>> sides() const;  // who called the same; ours first, then by their first ranks
  Error between(int other) const;            // what that one called where this rank called something else

  std::vector<int> ranks_;
  int me_;
  Envelope ours_;
  std::map<int, Envelope> called_;  // by rank, this one's too
};

// The number of the message that says what a rank called. No collective asks for it: it arrives as a message that came early.
inline constexpr uint32_t kSignatureReport = UINT32_MAX;

// Tells every other of these ranks what this one called; a moment later, when the transport is ready for it.
Coroutine report_signature(Transport& transport, const std::vector<int>& ranks, Envelope called);

}  // namespace cairn::comm
