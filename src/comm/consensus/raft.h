#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/random.h"

namespace cairn::comm {

// An entry of the replicated log.
struct RaftEntry {
  enum class Kind : uint8_t { no_op, members, value };  // no_op: the first entry of a leader, which commits those before it
  uint64_t term = 0;
  Kind kind = Kind::no_op;
  std::vector<int> members = {};     // members: the sites of the group from this entry on, in rising order
  std::vector<std::byte> body = {};  // value
  bool operator==(const RaftEntry&) const = default;
};

// What a site must not forget when it restarts. Entries before `first` are replaced by a snapshot of what they led to.
struct RaftState {
  uint64_t term = 0;
  int voted_for = -1;  // in this term; -1: nobody
  uint64_t first = 1;  // index of entries[0]
  uint64_t snapshot_term = 0;
  std::vector<int> snapshot_members = {};
  std::vector<std::byte> snapshot = {};
  std::vector<RaftEntry> entries = {};
  bool operator==(const RaftState&) const = default;
};

// Where a site keeps its state.
class RaftStore {
 public:
  virtual ~RaftStore() = default;
  virtual RaftState load() = 0;
  virtual void save(const RaftState& state) = 0;  // durable when it returns; throws Kind::disk
};

struct RaftMessage {
  enum class Kind : uint8_t { pre_vote, pre_vote_reply, vote, vote_reply, append, append_reply, install, resign };
  Kind kind = Kind::append;
  uint64_t term = 0;
  uint64_t index = 0;     // vote: the candidate's last entry; append: the entry before `entries`; append_reply: the last entry that agrees
  uint64_t log_term = 0;  // of that entry
  uint64_t commit = 0;    // append: the leader's
  bool granted = false;   // replies
  std::vector<RaftEntry> entries = {};
  std::vector<int> members = {};         // install
  std::vector<std::byte> snapshot = {};  // install
  bool operator==(const RaftMessage&) const = default;
};

// Mistakes that a test can plant, as data, to see that it finds them.
struct RaftFaults {
  bool decide_without_majority = false;
  bool forget_vote = false;  // on restart
  bool apply_before_commit = false;
  bool answer_from_old_term = false;  // counts replies of an earlier term
};

// One site of a group that agrees on a log of entries, by the Raft algorithm (raft.cpp). No input or output of its own: the owner delivers
// messages and time, and sends what take_outgoing() gives. Used by one thread.
class Raft {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  struct Options {
    int me = 0;
    // A site that hears no leader for a random time between these starts an election.
    Nanoseconds election_min = std::chrono::seconds(2), election_max = std::chrono::seconds(4);
    Nanoseconds heartbeat = std::chrono::milliseconds(500);
    uint64_t seed = 0;
    // False: this site has a log but no vote. For a site that may have forgotten a vote, until the group has taken it in anew.
    bool votes = true;
    RaftFaults faults = {};
  };
  enum class Role { follower, pre_candidate, candidate, leader };
  struct Outgoing {
    int to = 0;
    RaftMessage message;
  };
  struct Committed {
    uint64_t index = 0;
    RaftEntry entry;
  };
  // A snapshot that replaced the log: another site's, because this one was too far behind, or this one's own after a restart.
  struct Installed {
    uint64_t index = 0;
    std::vector<int> members;
    std::vector<std::byte> snapshot;
  };

  // Continues from the store. `founders` are the members of a group that has no log yet.
  Raft(Options options, RaftStore& store, std::vector<int> founders, Nanoseconds now);

  void tick(Nanoseconds now);  // now and then, at least every heartbeat
  // A sign of life of this site that did not come in a message: a leader or follower that is busy is not taken for lost.
  void alive(int site, Nanoseconds now);
  // Sites can be reached again: an election may succeed now.
  void links_changed(Nanoseconds now);
  void set_votes(bool votes) { votes_ = votes; }
  // Another site shall lead: no election of this site's own for some election times.
  void step_down(Nanoseconds now);
  // The leader seems to do nothing: this site waits for it no longer, and votes for another one.
  void suspect_leader();
  void receive(int from, const RaftMessage& message, Nanoseconds now);
  // Appends to the log, on the leader; elsewhere nothing. Returns the index: committed once take_committed() gives that index with this
  // term.
  std::optional<uint64_t> propose(std::vector<std::byte> value, Nanoseconds now);
  // One site more or less; one change at a time. Nothing if this site is not the leader or the last change is not committed.
  std::optional<uint64_t> propose_members(std::vector<int> members, Nanoseconds now);
  // Replaces the log up to a committed index by a snapshot.
  void compact(uint64_t index, std::vector<std::byte> snapshot);

  std::vector<Outgoing> take_outgoing();
  std::vector<Committed> take_committed();  // in the order of the log, each once
  std::optional<Installed> take_installed();

  int me() const { return options_.me; }
  Role role() const { return role_; }
  uint64_t term() const { return state_.term; }
  bool leads() const { return role_ == Role::leader; }
  // Whether this site leads and knows all that earlier leaders committed.
  bool leads_with_full_log() const { return leads() && term_at(commit_) == state_.term; }
  bool is_blank() const { return state_.term == 0 && last() == 0; }  // it never took part
  uint64_t matched(int site) const;                                  // on the leader: the last entry that this follower has
  int leader() const { return leader_; }                             // -1: not known
  uint64_t committed() const { return commit_; }
  uint64_t last() const { return state_.first + state_.entries.size() - 1; }
  size_t log_length() const { return state_.entries.size(); }
  const std::vector<int>& members() const { return members_; }  // by the newest entry that this site has
  bool is_member(int site) const;
  // Whether this site is connected to a majority: the leader hears one, or a follower hears its leader.
  bool has_quorum(Nanoseconds now) const;

 private:
  uint64_t term_at(uint64_t index) const;  // 0 before the log; the snapshot's at its end
  bool is_up_to_date(uint64_t index, uint64_t log_term) const;
  bool is_majority(size_t sites) const;
  void save();
  void save_what_failed();
  bool hears_leader(Nanoseconds now, Nanoseconds within) const;
  bool may_stand() const;
  void find_members();
  void restart_election_timer(Nanoseconds now);
  void become_follower(uint64_t term, int leader, Nanoseconds now);
  void resign(Nanoseconds now);
  void start_election(Role role, Nanoseconds now);
  void count_vote(int from, Nanoseconds now);
  void become_leader(Nanoseconds now);
  uint64_t append(RaftEntry entry, Nanoseconds now);
  void send(int to, RaftMessage message);
  void send_append(int to);
  void send_to_all(Nanoseconds now);
  void on_vote(int from, const RaftMessage& message, Nanoseconds now);
  bool accept_leader(int from, const RaftMessage& message, Nanoseconds now);
  void on_append(int from, const RaftMessage& message, Nanoseconds now);
  void on_append_reply(int from, const RaftMessage& message, Nanoseconds now);
  void on_install(int from, const RaftMessage& message, Nanoseconds now);
  void take_entries(const RaftMessage& message);
  void on_others_reply(int from, const RaftMessage& message);
  void commit_by_majority(Nanoseconds now);
  void drop_removed_followers(Nanoseconds now);
  void commit_up_to(uint64_t index);

  const Options options_;
  RaftStore& store_;
  RaftState state_;
  base::Random random_;
  uint64_t drawn_ = 0;
  int elections_ = 0;  // without success, one after the other
  bool votes_;
  bool unsaved_ = false;  // the last save failed
  std::vector<int> members_;
  uint64_t members_at_ = 0;  // index of the entry that says so; 0: the snapshot does
  Role role_ = Role::follower;
  int leader_ = -1;
  uint64_t commit_ = 0, last_applied_ = 0;  // entries that are committed, and that take_committed() knows of
  Nanoseconds election_at_{}, heartbeat_at_{}, heard_leader_{-1};
  std::set<int> voters_;  // for this candidate
  struct Follower {
    uint64_t next = 1, match = 0;
    Nanoseconds heard{};
  };
  std::map<int, Follower> followers_;  // on the leader
  uint64_t agreed_ = 0;                // on a follower: its log agrees with the leader's up to here
  std::map<int, uint64_t> others_;     // on a follower: up to where the logs of other followers agree with the leader's
  std::vector<Outgoing> outgoing_;
  std::vector<Committed> committed_;
  std::optional<Installed> installed_;
};

}  // namespace cairn::comm
