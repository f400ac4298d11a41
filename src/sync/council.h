#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "sync/island_post.h"

namespace cairn::sync {

// Some of the islands, by number.
using IslandSet = std::vector<bool>;

// What a round came to: alike on every island that lives.
struct Verdict {
  IslandSet counted;  // whose messages every voter had: these and no others are used
  IslandSet lost;     // who takes part no longer
  IslandSet come;     // who takes part from now on
  bool stop = false;  // some island would like to end
};

// Rounds in which every island has a message for every other, and all that live come to agree on which of them count, though islands may be
// late, or die at any moment.
//
// Each island votes which messages it has; the lowest that lives counts the votes and tells all. Should it die, the next one asks for the
// votes again, and for the verdict, in case anyone has heard it. An island that is late is waited for as long as the time limit says; what
// it sent is then left out, but it stays a member, and finds verdict and messages when it comes.
//
// Who is a member changes when a round is concluded, which all do in the same order, and counts for rounds that begin later.
class Council {
 public:
  Council(IslandPost& post, std::chrono::nanoseconds timeout);

  const IslandSet& members() const { return members_; }
  int count() const;  // of the members
  int me() const { return post_.me(); }
  IslandPost& post() const { return post_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void found(IslandSet members) { members_ = std::move(members); }  // before the first round
  // This island, which need not be a member yet, is ready to become one: as soon as all that vote can reach it.
  void propose(int island) { proposed_[static_cast<size_t>(island)] = true; }

  // The state of one round here.
  class Round {
   public:
    // Goes on as far as it can without waiting. True: there is a verdict.
    bool progress();
    // Waits for the verdict.
    const Verdict& wait();
    const Verdict& verdict() const { return verdict_; }
    const Subject& about() const { return about_; }
    const IslandSet& members() const { return members_; }  // of this round

   private:
    friend class Council;
    Round(Council& council, const Subject& about, bool wants_to_stop);
    bool all_here() const;
    void vote();
    bool count_votes();
    void decide(Verdict verdict);
    int speaker() const;  // who counts the votes
    template <typename Do>
    void for_others(Do act) const;  // that are members and not known to be lost

    Council& council_;
    IslandSet members_;
    Subject about_;
    std::chrono::nanoseconds begun_;
    bool wants_to_stop_;
    IslandSet held_;      // what this island voted for; empty: not yet
    int voted_to_ = -1;   // whom it sent its vote
    bool asked_ = false;  // as a later speaker: whether anyone has heard a verdict
    bool decided_ = false;
    Verdict verdict_;
  };

  // Begins the round of this step and part. Whoever does sends each other member its message, under Round::about, then or later.
  Round begin(int64_t step, int32_t part, bool wants_to_stop);
  // All who live do this for all rounds in one order.
  void conclude(const Round& round);
  // What an island sent in a round; null: nothing (yet).
  const std::vector<std::byte>* parcel(int from, int64_t step, int32_t part) const;
  // Rounds of this step and earlier ones are over; their messages go. Verdicts are remembered for a while, for those who missed them.
  void close(int64_t step);

 private:
  IslandPost& post_;
  const std::chrono::nanoseconds timeout_;
  IslandSet members_, proposed_;
  std::map<std::pair<int64_t, int32_t>, Verdict> verdicts_;  // the last ones
};

}  // namespace cairn::sync
