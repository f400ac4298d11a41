#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/consensus/raft.h"
#include "sync/islands/decision_entries.h"
#include "sync/islands/messenger.h"

namespace cairn::sync {

struct DecisionLogOptions {
  comm::RaftStore* store = nullptr;     // null: this island forgets its votes when it ends
  std::vector<int> first_members = {};  // of the log, before its first change; empty: all islands
  bool votes = true;                    // false: this island may have voted before and forgotten it (comm/consensus/raft.h)
  std::chrono::nanoseconds election = std::chrono::seconds(1);  // a lost leader is replaced after one to two of these
  comm::RaftFaults faults = {};
};

inline constexpr std::chrono::nanoseconds kLongAgo{std::numeric_limits<int64_t>::min() / 2};

// What islands decide together: who takes part, and the result of each round. Decisions are entries of one log that a strict majority of
// the members has accepted (comm/consensus/raft.h), so there is one sequence of them whatever links and processes do. The rules are at the
// top of decision_log.cpp.
//
// Used from the thread of the messenger, which drives it: nothing happens unless the messenger is pumped.
class DecisionLog {
 public:
  using Options = DecisionLogOptions;
  using Nanoseconds = std::chrono::nanoseconds;

  DecisionLog(IslandMessenger& messenger, Options options);

  // Says what this island has of a round, once; later calls for the round change nothing. All members of the round are told, again and
  // again until there is a decision.
  void vote(const RoundId& round, const RoundVote& vote, const Incarnations& members);
  // The vote of a member in a round; null: not here.
  const RoundVote* vote_of(int island, uint64_t incarnation, const RoundId& round) const;
  // The result of a round; null: there is none yet.
  const RoundDecision* decision(const RoundId& round);
  const RoundDecision* proposal(const RoundId& round) const;  // of a leader, in the log
  // Whether decisions of this round and earlier ones are no longer known here.
  bool has_forgotten(const RoundId& round) const { return round < forgotten_before_; }
  // As the leader: writes to the log. Does nothing if this island does not lead, or has asked for the same before.
  void propose(const DecisionEntry& entry);
  bool is_pending(const RoundId& round) const;  // this leader has proposed a result of the round, which is not committed yet

  bool leads() const { return raft_.leads_with_full_log(); }
  int leader() const { return raft_.leader(); }
  bool has_quorum() const { return raft_.has_quorum(messenger_.now()); }  // this island is connected to a majority of the members
  bool is_blank() const { return raft_.is_blank(); }
  void set_votes(bool votes) { raft_.set_votes(votes); }
  const std::vector<int>& log_members() const { return raft_.members(); }
  // Islands that shall share the log before the first founding, on the leader.
  void set_first_members(IslandSet islands) { first_members_ = std::move(islands); }

  // All islands are members from the start: there is no founding.
  void set_founded(const Incarnations& members);
  const std::optional<Founding>& founding() const { return founding_; }  // the latest
  uint64_t epoch() const { return founding_ ? founding_->epoch : 0; }
  const Incarnations& members() const { return members_; }  // by the newest entry
  // Who takes part in a round of this step among a few islands (peers.h). The same on all islands that have applied the same entries.
  Incarnations members_at(int64_t step) const;
  // The step from which this island is a member; nothing: that entry is no longer known, or there is none.
  std::optional<int64_t> member_from() const;
  uint64_t changes() const { return folded_changes_ + changes_.size(); }  // of the membership since the founding
  uint64_t applied() const { return applied_; }                           // entries of the log
  // The entry by which this island became a member; 0: not known.
  uint64_t member_since() const { return member_since_; }
  // The others have decided to go on without this island.
  bool is_removed() const { return removed_; }
  void set_removed() { removed_ = true; }
  // This island is no member, and becomes one under its present incarnation.
  void set_entering();
  // It has become one. Whoever has applied this many entries knows of it; 0: not known.
  void set_joined(uint64_t known_since) {
    removed_ = false;
    if (member_since_ == 0) member_since_ = known_since;
  }

  // Whether this island trains in the lineage. One that enters leaves the lead to one that does.
  void set_works(int island, bool works) { works_[static_cast<size_t>(island)] = works; }
  // No decision though all is there: somebody else shall lead.
  void suspect_leader();

  std::string describe_missing() const;  // "islands 2 and 3": members of the log that cannot be reached

 private:
  struct Record {
    std::optional<RoundDecision> proposal, decision;
  };
  struct Vote {
    uint64_t incarnation = 0;
    RoundVote vote;
  };

  void tick();
  void deliver(const IslandMessenger::Arrived& arrived);
  void flush();
  void lead(Nanoseconds now);
  void apply(const DecisionEntry& entry, uint64_t index);
  void apply_founding(const Founding& founding, uint64_t index);
  void change_members(int64_t from, const RoundDecision& decision, uint64_t index);
  void install(const comm::Raft::Installed& installed);
  void compact();
  void forget_old_rounds();
  bool is_unanimous(const RoundId& round, const RoundDecision& proposal) const;
  struct OwnVote {
    RoundVote vote;
    Incarnations members;
  };
  void send_vote(const RoundId& round, const OwnVote& vote);

  IslandMessenger& messenger_;
  std::unique_ptr<comm::RaftStore> own_store_;
  comm::Raft raft_;
  IslandSet first_members_, works_, reached_;
  std::vector<uint64_t> heard_;  // by island: the incarnation of its last message
  int leader_ = -1;              // whose incarnation this is:
  uint64_t leader_incarnation_ = 0;
  std::map<RoundId, Record> rounds_;                            // recent ones
  std::map<RoundId, std::map<int, Vote>> votes_;                // by island
  std::map<RoundId, OwnVote> own_votes_;                        // not decided yet
  std::set<std::pair<RoundId, DecisionEntry::Kind>> proposed_;  // in this term, by this leader
  uint64_t proposed_term_ = 0;
  Nanoseconds votes_sent_{kLongAgo}, ticked_{kLongAgo};
  RoundId forgotten_before_{};
  std::optional<Founding> founding_;
  Incarnations members_;
  // The newest changes of the membership, in the order of the log, and the members before them.
  struct MemberChange {
    int64_t from = 0;  // step
    Incarnations lost, joined;
    void apply(Incarnations& members) const;
  };
  std::deque<MemberChange> changes_;
  Incarnations members_before_changes_;
  uint64_t folded_changes_ = 0;  // older ones
  uint64_t applied_ = 0, member_since_ = 0;
  bool removed_ = false, disk_failed_ = false;
};

}  // namespace cairn::sync
