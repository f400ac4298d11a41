#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "sync/islands/messenger.h"

namespace cairn::sync {

// Some of the islands, by number.
using IslandSet = std::vector<bool>;

// The result of a round: identical on every live island.
struct RoundDecision {
  IslandSet included;  // every voter has the updates of these islands: exactly these are used
  IslandSet lost;      // members that leave
  IslandSet joined;    // islands that become members
  bool stop = false;   // some island was asked to stop
};

// Rounds in which every island sends an update to every other and all live islands decide which updates count, although islands may be late
// or die at any moment. The protocol is described in quorum.cpp.
//
// Membership changes when a round is concluded. All islands conclude rounds in one order, and the change holds for rounds that begin later.
// Not thread-safe; used from the thread of the messenger.
class Quorum {
 public:
  Quorum(IslandMessenger& messenger, std::chrono::nanoseconds timeout);

  const IslandSet& members() const { return members_; }
  int count() const;  // of members
  int me() const { return messenger_.me(); }
  IslandMessenger& messenger() const { return messenger_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_members(IslandSet members) { members_ = std::move(members); }  // before the first round
  // Proposes an island as a new member. It becomes one by the first round in which all voters can reach it.
  void propose(int island) { proposed_[static_cast<size_t>(island)] = true; }

  // One round, as this island sees it.
  class Round {
   public:
    // Advances the protocol without waiting. True: there is a decision.
    bool progress();
    // Waits for the decision. Throws lost_peer where none comes within five time limits.
    const RoundDecision& wait();
    const RoundDecision& decision() const { return decision_; }
    const MessageTag& tag() const { return tag_; }
    const IslandSet& members() const { return members_; }  // of this round

   private:
    friend class Quorum;
    Round(Quorum& quorum, const MessageTag& tag, bool wants_to_stop);
    bool all_here() const;
    void vote();
    bool count_votes();
    void decide(RoundDecision decision);
    int leader() const;  // counts the votes: the lowest live member
    template <typename Do>
    void for_others(Do act) const;  // every other member that is not lost

    Quorum& quorum_;
    IslandSet members_;
    MessageTag tag_;
    std::chrono::nanoseconds begun_;
    bool wants_to_stop_;
    IslandSet held_;      // the updates that this island voted for; empty: it has not voted
    int voted_to_ = -1;   // the leader that has its vote
    bool asked_ = false;  // as a later leader: it asked whether anyone has the decision of an earlier one
    bool decided_ = false;
    RoundDecision decision_;
  };

  // Begins the round of this step and part. The caller sends its update to each other member under Round::tag, then or later.
  Round begin(int64_t step, int32_t part, bool wants_to_stop);
  // Applies a decision to the membership. All live islands conclude all rounds in one order.
  void conclude(const Round& round);
  // The update of an island in a round; null: not here.
  const std::vector<std::byte>* update_from(int from, int64_t step, int32_t part) const;
  // Drops the messages of rounds up to this step. Decisions are kept for a while, for islands that missed them.
  void close(int64_t step);

 private:
  IslandMessenger& messenger_;
  const std::chrono::nanoseconds timeout_;
  IslandSet members_, proposed_;
  std::map<std::pair<int64_t, int32_t>, RoundDecision> decisions_;  // recent ones, by step and part
};

}  // namespace cairn::sync
