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

// What a round came to: alike on every island that lives.
struct RoundDecision {
  IslandSet counted;  // whose messages every voter had: these and no others are used
  IslandSet lost;     // who takes part no longer
  IslandSet joined;   // who takes part from now on
  bool stop = false;  // some island would like to end
};

// Rounds in which every island has a message for every other, and all that live come to agree on which of them count, though islands may be
// late, or die at any moment.
//
// Each island votes which messages it has; the lowest that lives counts the votes and tells all. Should it die, the next one asks for the
// votes again, and for the decision, in case anyone has heard it. An island that is late is waited for as long as the time limit says; what
// it sent is then left out, but it stays a member, and finds decision and messages when it comes.
//
// Who is a member changes when a round is concluded, which all do in the same order, and counts for rounds that begin later.
class Quorum {
 public:
  Quorum(IslandMessenger& messenger, std::chrono::nanoseconds timeout);

  const IslandSet& members() const { return members_; }
  int count() const;  // of the members
  int me() const { return messenger_.me(); }
  IslandMessenger& messenger() const { return messenger_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_members(IslandSet members) { members_ = std::move(members); }  // before the first round
  // This island, which need not be a member yet, is ready to become one: as soon as all that vote can reach it.
  void propose(int island) { proposed_[static_cast<size_t>(island)] = true; }

  // The state of one round here.
  class Round {
   public:
    // Goes on as far as it can without waiting. True: there is a decision.
    bool progress();
    // Waits for the decision.
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
    int leader() const;  // who counts the votes
    template <typename Do>
    void for_others(Do act) const;  // that are members and not known to be lost

    Quorum& quorum_;
    IslandSet members_;
    MessageTag tag_;
    std::chrono::nanoseconds begun_;
    bool wants_to_stop_;
    IslandSet held_;      // what this island voted for; empty: not yet
    int voted_to_ = -1;   // whom it sent its vote
    bool asked_ = false;  // as a later leader: whether anyone has heard a decision
    bool decided_ = false;
    RoundDecision decision_;
  };

  // Begins the round of this step and part. Whoever does sends each other member its message, under Round::about, then or later.
  Round begin(int64_t step, int32_t part, bool wants_to_stop);
  // All who live do this for all rounds in one order.
  void conclude(const Round& round);
  // What an island sent in a round; null: nothing (yet).
  const std::vector<std::byte>* update_from(int from, int64_t step, int32_t part) const;
  // Rounds of this step and earlier ones are over; their messages go. Verdicts are remembered for a while, for those who missed them.
  void close(int64_t step);

 private:
  IslandMessenger& messenger_;
  const std::chrono::nanoseconds timeout_;
  IslandSet members_, proposed_;
  std::map<std::pair<int64_t, int32_t>, RoundDecision> decisions_;  // the last ones
};

}  // namespace cairn::sync
