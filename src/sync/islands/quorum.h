#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sync/islands/decision_log.h"
#include "sync/islands/messenger.h"
#include "sync/options.h"

namespace cairn::sync {

// How a round ended for an island.
enum class RoundEnding {
  decided,   // there is a result, the same on all islands
  alone,     // no majority can be reached, and this island trains on alone, as it was asked to
  stopped,   // this island was asked to stop while it waited
  minority,  // no majority could be reached for too long
  rejoin     // the others went on without this island: it can come back with their state
};

// What a rule tells the trainer about rounds without a result (Sync::interruption, Sync::apart).
struct RoundTrouble {
  bool ended = false;  // this island takes part in no more rounds
  std::string interruption = {};
  int64_t alone_since = 0;  // the step since which this island trains alone; 0: it does not
  void note(RoundEnding ending, int64_t step, const std::string& waiting_for);
  std::string apart() const;
};

struct QuorumOptions {
  std::chrono::nanoseconds timeout{};  // how long a round waits for an island
  OnMinority on_minority = OnMinority::wait;
  std::chrono::nanoseconds minority_timeout{};  // how long an island without a majority waits for one
  std::function<bool()> stopping = {};          // whether this island was asked to stop; it then ends its waits within seconds
  std::function<void()> waiting = {};           // called now and then while this island waits
  int max_missed = 0;                           // a member leaves after so many rounds in a row without its update; 0: never
  bool founded = true;                          // all islands are members from the start; false: set_members says who is
  DecisionLogOptions decisions = {};
};
struct Replica;
QuorumOptions quorum_options(const SyncOptions& options, const Replica& replica);

// Rounds in which every island sends an update to every other and all decide together which updates count (decision_log.h), although
// islands may be late, cut off or dead at any moment.
//
// An island that is late is left out of the decision but stays a member: it finds the decision and the updates when it arrives.
//
// Membership changes when a round is concluded. All islands conclude rounds in one order, and the change holds for rounds that begin later.
// Not thread-safe; used from the thread of the messenger.
class Quorum {
 public:
  Quorum(IslandMessenger& messenger, QuorumOptions options);

  const Incarnations& members() const { return members_; }
  bool is_member(int island) const { return members_[static_cast<size_t>(island)] != 0; }
  int count() const;  // of members
  int me() const { return messenger_.me(); }
  IslandMessenger& messenger() const { return messenger_; }
  DecisionLog& decisions() { return decisions_; }
  std::chrono::nanoseconds timeout() const { return options_.timeout; }
  void set_members(Incarnations members, uint64_t epoch);
  // Members by the newest entry of the log, for rules whose rounds do not change them (peers.h).
  void follow_log() { members_ = decisions_.members(); }
  // Proposes an island as a new member.
  void propose(int island, uint64_t incarnation) { proposed_[static_cast<size_t>(island)] = incarnation; }

  // One round, as this island sees it.
  class Round {
   public:
    // Advances the protocol without waiting. True: there is a decision.
    bool progress();
    const RoundDecision& decision() const { return decision_; }
    bool decided() const { return decided_; }
    const MessageTag& tag() const { return tag_; }
    const Incarnations& members() const { return members_; }  // of this round
    std::chrono::nanoseconds begun() const { return begun_; }
    // The updates that should be merged now: their digest is needed for a decision, or is likely to be. Empty: none.
    const Incarnations& wanted() const { return wanted_; }
    void set_digest(const Incarnations& included, uint64_t digest);

   private:
    friend class Quorum;
    Round(Quorum& quorum, const MessageTag& tag, bool wants_to_stop, bool admits);
    bool is_present(int island) const;  // it can be reached, and has not started again since it became a member
    bool all_here() const;
    void vote();
    void lead();
    std::optional<RoundDecision> counted_votes() const;
    bool write(DecisionEntry::Kind kind, RoundDecision decision);

    Quorum* quorum_;
    Incarnations members_;
    MessageTag tag_;
    RoundId id_;
    std::chrono::nanoseconds begun_;
    bool wants_to_stop_, admits_;
    std::optional<RoundVote> vote_;
    Incarnations wanted_;
    std::optional<std::pair<Incarnations, uint64_t>> digest_;
    bool suspected_ = false;  // the leader, by this island
    bool decided_ = false;
    RoundDecision decision_;
  };

  // Begins the round of this step and part. The caller sends its update to each other member under Round::tag, then or later.
  Round begin(int64_t step, int32_t part, bool wants_to_stop, bool admits = true);
  // Why this island should wait no longer for what began then; nothing: it should wait on.
  std::optional<RoundEnding> give_up(std::chrono::nanoseconds begun, bool decided = false);
  // Receives until `done` returns true or until this time; if this island was asked to stop, only for seconds. False: the time is over.
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds until);
  // What this island waits for, for people: "islands 1, 3".
  std::string waiting_for() const;
  // Whether this island was asked to stop some seconds ago, and must wait no longer.
  bool must_stop();
  // Applies a decision to the membership. All islands conclude all rounds in one order.
  void conclude(const Round& round);
  // The update of an island in a round; null: not here.
  const std::vector<std::byte>* update_from(int from, int64_t step, int32_t part) const;
  // Drops the messages of rounds up to this step.
  void close(int64_t step);

 private:
  IslandMessenger& messenger_;
  const QuorumOptions options_;
  DecisionLog decisions_;
  Incarnations members_, proposed_;
  std::vector<int> missed_;  // by island: rounds in a row without its update
  uint64_t epoch_ = 0;
  std::optional<std::chrono::nanoseconds> stop_seen_, no_majority_since_;
  bool told_ = false;   // that there is no majority
  bool alone_ = false;  // this island has trained without the others
};

}  // namespace cairn::sync
