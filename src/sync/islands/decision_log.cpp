// How islands decide. Every decision is an entry of one log (Raft): it holds once a strict majority of the members of the log has it.
//
// A round. Every member sends its update to every other. Its result is the set of updates that count, and a digest of their merge. It is
// in the log before anyone applies it.
//
//   member   has all updates, or waited for T      -> votes: which updates it has. It tells all members, and never changes a vote
//   leader   has the updates of all members        -> merges them and writes a proposal: all updates, their digest
//   leader   has the votes of all members that it
//            reaches, but no agreement as below    -> writes a decision: the updates that all these voters have, who left, who joined
//
// The result is
//   - the proposal, if it is committed and every member has voted for just that (all updates, nobody proposed, no stop): nobody waits
//     longer for it than for two messages after the last update;
//   - else the first decision of the round in the log.
// Both cannot differ. Votes do not change. If all members voted for the proposal, then every vote that a leader counts says so, and then
// it must decide exactly as proposed (rule in Quorum::Round::lead). A leader knows every committed proposal: it first commits an entry of
// its own term. A member that lacks a vote repeats its own, and a leader that has all writes the decision for it.
//
// Membership. Members of rounds leave and join by decisions of rounds, and the members of the log follow: the leader adds and removes one
// at a time. An island that comes back, by a new process or because it was left out, has a new incarnation and joins like a new one.
// Votes and updates of an older incarnation do not count for it.
//
// Rules whose rounds are among a few islands (peers.h) decide no round together. There the leader writes memberships: who leaves and joins,
// from a step on that no island has reached yet. Who takes part in the round of a step is a function of these entries.
//
// Time is only for progress. A leader that can be reached is not replaced, however long its steps take, unless members wait for it in a
// round (suspect_leader).
#include "sync/islands/decision_log.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/consensus/raft_wire.h"

namespace cairn::sync {
namespace {

using Kind = MessageTag::Kind;

constexpr size_t kRoundsKept = 64;
constexpr size_t kChangesKept = 32;  // of the membership
constexpr size_t kEntriesKept = 64;  // of the log
constexpr auto kTickEvery = std::chrono::milliseconds(5);
constexpr auto kVoteAgainAfter = std::chrono::seconds(2);

class ForgetfulStore final : public comm::RaftStore {
 public:
  comm::RaftState load() override { return {}; }
  void save(const comm::RaftState&) override {}
};

std::vector<int> all_islands(int count) {
  std::vector<int> all;
  for (int island = 0; island < count; ++island) all.push_back(island);
  return all;
}

}  // namespace

DecisionLog::DecisionLog(IslandMessenger& messenger, Options options)
    : messenger_(messenger),
      own_store_(options.store ? nullptr : std::make_unique<ForgetfulStore>()),
      raft_({.me = messenger.me(),
             .election_min = options.election,
             .election_max = 2 * options.election,
             .heartbeat = options.election / 2,
             .seed = 1,
             .votes = options.votes,
             .faults = options.faults},
            options.store ? *options.store : *own_store_,
            options.first_members.empty() ? all_islands(messenger.size()) : options.first_members, messenger.now()),
      works_(static_cast<size_t>(messenger.size())),
      heard_(static_cast<size_t>(messenger.size())),
      members_(static_cast<size_t>(messenger.size())),
      members_before_changes_(members_.size()) {
  messenger_.on_message(Kind::raft, [this](const IslandMessenger::Arrived& message) { deliver(message); });
  messenger_.on_message(Kind::vote, [this](const IslandMessenger::Arrived& message) {
    auto said = decode_vote(message.body, members_.size());
    if (!said || has_forgotten(said->first)) return;
    Vote& vote = votes_[said->first][message.from];
    const bool again = vote.incarnation == message.incarnation;
    if (vote.incarnation < message.incarnation) vote = {message.incarnation, std::move(said->second)};
    // Who votes again lacks a vote that made the proposal the result, and its voter may be gone: an entry says so as well.
    const RoundDecision* result = again && leads() ? decision(said->first) : nullptr;
    if (result) propose({.kind = DecisionEntry::Kind::decision, .round = said->first, .decision = *result});
  });
  messenger_.on_pump([this] { tick(); });
  if (!raft_.is_blank()) raft_.set_votes(true);  // its store has what it voted for
  if (auto installed = raft_.take_installed()) install(*installed);
}

void DecisionLog::deliver(const IslandMessenger::Arrived& arrived) {
  const auto message = comm::decode_raft_message(arrived.body);
  if (!message) return;
  heard_[static_cast<size_t>(arrived.from)] = arrived.incarnation;
  try {
    raft_.receive(arrived.from, *message, messenger_.now());
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::disk) throw;
  }
  flush();
}

void DecisionLog::tick() {
  const Nanoseconds now = messenger_.now();
  if (now - ticked_ < kTickEvery) return;
  ticked_ = now;
  for (int island = 0; island < messenger_.size(); ++island)
    if (island != messenger_.me() && !messenger_.lost(island) && messenger_.incarnation(island) == heard_[static_cast<size_t>(island)] &&
        (island != leader_ || messenger_.incarnation(island) == leader_incarnation_))
      raft_.alive(island, now);
  IslandSet reached(members_.size());
  for (size_t i = 0; i < reached.size(); ++i) reached[i] = !messenger_.lost(static_cast<int>(i));
  if (reached != std::exchange(reached_, reached)) raft_.links_changed(now);
  try {
    raft_.tick(now);
    if (raft_.leads_with_full_log()) lead(now);
    compact();
    disk_failed_ = false;
  } catch (const Error& error) {  // what is not saved is not answered for: the others go on without this island meanwhile
    if (error.kind() != Error::Kind::disk) throw;
    if (!std::exchange(disk_failed_, true)) messenger_.warn(fmt::format("the log of the islands cannot be saved: {}", error.what()));
  }
  flush();
  if (now - votes_sent_ < kVoteAgainAfter) return;
  votes_sent_ = now;
  for (const auto& [round, vote] : own_votes_) send_vote(round, vote);
}

// Sends what the log has to send, and applies what is committed.
void DecisionLog::flush() {
  for (const comm::Raft::Outgoing& one : raft_.take_outgoing())
    messenger_.send(one.to, {Kind::raft, 0, 0}, comm::encode(one.message), comm::Purpose::control);
  if (raft_.leader() != leader_) {
    leader_ = raft_.leader();
    leader_incarnation_ = leader_ < 0 ? 0 : messenger_.incarnation(leader_);
  }
  if (const auto installed = raft_.take_installed()) install(*installed);
  for (const comm::Raft::Committed& one : raft_.take_committed()) {
    if (one.entry.kind == comm::RaftEntry::Kind::value)
      if (const auto entry = decode_decision_entry(one.entry.body, members_.size())) apply(*entry, one.index);
    applied_ = one.index;
  }
}

// As the leader: gives the lead to an island that trains, and lets the members of the log follow those of the rounds.
void DecisionLog::lead(Nanoseconds now) {
  const auto me = static_cast<size_t>(messenger_.me());
  if (!works_[me] && members_[me] != messenger_.incarnation(messenger_.me()))  // one that is entering
    for (int island = 0; island < messenger_.size(); ++island)
      if (works_[static_cast<size_t>(island)] && !messenger_.lost(island) && raft_.is_member(island) &&
          raft_.matched(island) == raft_.last())
        return raft_.step_down(now);
  IslandSet target = first_members_;
  if (founding_) {
    target.assign(members_.size(), false);
    for (size_t i = 0; i < members_.size(); ++i) target[i] = members_[i] != 0;
  }
  if (target.empty()) return;
  for (const bool adds : {true, false}) {
    for (int island = 0; island < messenger_.size(); ++island) {
      if (target[static_cast<size_t>(island)] != adds || raft_.is_member(island) == adds) continue;
      if (adds && messenger_.lost(island)) continue;
      std::vector<int> members = raft_.members();
      if (adds)
        members.push_back(island);
      else
        std::erase(members, island);
      if (members.empty()) continue;
      raft_.propose_members(std::move(members), now);
      return;
    }
  }
}

void DecisionLog::propose(const DecisionEntry& entry) {
  if (!leads()) return;
  if (std::exchange(proposed_term_, raft_.term()) != raft_.term()) proposed_.clear();
  const RoundId id = entry.kind == DecisionEntry::Kind::founding ? RoundId{.epoch = entry.founding.epoch} : entry.round;
  if (!proposed_.insert({id, entry.kind}).second) return;
  try {
    raft_.propose(encode(entry), messenger_.now());
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::disk) throw;  // it is in the log and will be saved by the next tick
  }
  flush();
}

bool DecisionLog::is_pending(const RoundId& round) const {
  if (proposed_term_ != raft_.term()) return false;
  if (proposed_.contains({round, DecisionEntry::Kind::decision})) return true;
  return proposed_.contains({round, DecisionEntry::Kind::proposal}) && !proposal(round);
}

void DecisionLog::set_entering() {
  member_since_ = 0;
  removed_ = false;
  own_votes_.clear();
  votes_.clear();
}

void DecisionLog::set_founded(const Incarnations& members) {
  founding_ = Founding{.members = members, .needs_state = IslandSet(members.size())};
  members_ = members_before_changes_ = members;
  member_since_ = 1;
}

void DecisionLog::MemberChange::apply(Incarnations& members) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if (lost[i] != 0 && lost[i] == members[i]) members[i] = 0;
    if (joined[i] != 0) members[i] = joined[i];
  }
}

Incarnations DecisionLog::members_at(int64_t step) const {
  Incarnations members = members_before_changes_;
  for (const MemberChange& change : changes_)
    if (change.from <= step) change.apply(members);
  return members;
}

std::optional<int64_t> DecisionLog::member_from() const {
  const uint64_t mine = messenger_.incarnation(messenger_.me());
  for (const MemberChange& change : changes_)
    if (change.joined[static_cast<size_t>(messenger_.me())] == mine) return change.from;
  return std::nullopt;
}

void DecisionLog::change_members(int64_t from, const RoundDecision& decision, uint64_t index) {
  const Incarnations nobody(members_.size());
  if (decision.lost == nobody && decision.joined == nobody) return;
  const auto me = static_cast<size_t>(messenger_.me());
  const uint64_t mine = messenger_.incarnation(messenger_.me());
  changes_.push_back({from, decision.lost, decision.joined});
  changes_.back().apply(members_);
  if (decision.lost[me] == mine) removed_ = true;
  if (decision.joined[me] == mine) {
    member_since_ = index;
    removed_ = false;
  }
  while (changes_.size() > kChangesKept) {
    changes_.front().apply(members_before_changes_);
    changes_.pop_front();
    ++folded_changes_;
  }
}

void DecisionLog::apply_founding(const Founding& founding, uint64_t index) {
  if (founding.epoch <= epoch()) return;  // two leaders founded: the first counts
  const auto me = static_cast<size_t>(messenger_.me());
  founding_ = founding;
  members_ = members_before_changes_ = founding.members;
  changes_.clear();
  folded_changes_ = 0;
  if (members_[me] == messenger_.incarnation(messenger_.me())) {
    member_since_ = index;
    removed_ = false;
  } else if (member_since_ != 0) {
    removed_ = true;  // this island was away while the others began anew
  }
  forgotten_before_ = {.epoch = founding_->epoch, .step = std::numeric_limits<int64_t>::min()};
  std::erase_if(rounds_, [&](const auto& one) { return has_forgotten(one.first); });
  std::erase_if(votes_, [&](const auto& one) { return has_forgotten(one.first); });
  std::erase_if(own_votes_, [&](const auto& one) { return has_forgotten(one.first); });
}

void DecisionLog::apply(const DecisionEntry& entry, uint64_t index) {
  if (entry.kind == DecisionEntry::Kind::founding) return apply_founding(entry.founding, index);
  if (entry.round.epoch != epoch()) return;
  if (entry.kind == DecisionEntry::Kind::membership) return change_members(entry.round.step, entry.decision, index);
  if (has_forgotten(entry.round)) return;
  Record& record = rounds_[entry.round];
  if (entry.kind == DecisionEntry::Kind::proposal) {
    if (!record.proposal && !record.decision) record.proposal = entry.decision;
    return;
  }
  if (record.decision) return;  // the first one counts
  record.decision = entry.decision;
  own_votes_.erase(entry.round);
  change_members(entry.round.step + 1, entry.decision, index);
  forget_old_rounds();
}

void DecisionLog::forget_old_rounds() {
  while (rounds_.size() > kRoundsKept) {
    forgotten_before_ = std::max(forgotten_before_, std::next(rounds_.begin())->first);
    rounds_.erase(rounds_.begin());
  }
  std::erase_if(votes_, [&](const auto& one) { return has_forgotten(one.first); });
  std::erase_if(own_votes_, [&](const auto& one) { return has_forgotten(one.first); });
}

// The log of another island replaces this one's.
void DecisionLog::install(const comm::Raft::Installed& installed) {
  const auto entries = decode_decision_entries(installed.snapshot, members_.size());
  if (!entries || entries->empty() || entries->front().kind != DecisionEntry::Kind::founding) return;
  const auto me = static_cast<size_t>(messenger_.me());
  rounds_.clear();
  applied_ = installed.index;
  founding_ = entries->front().founding;
  members_ = members_before_changes_ = founding_->members;
  changes_.clear();
  folded_changes_ = 0;
  for (const DecisionEntry& entry : *entries) {
    if (entry.kind == DecisionEntry::Kind::founding) continue;
    if (entry.kind == DecisionEntry::Kind::membership) {
      changes_.push_back({entry.round.step, entry.decision.lost, entry.decision.joined});
      changes_.back().apply(members_);
      continue;
    }
    Record& record = rounds_[entry.round];
    (entry.kind == DecisionEntry::Kind::proposal ? record.proposal : record.decision) = entry.decision;
    own_votes_.erase(entry.round);
  }
  if (!rounds_.empty()) forgotten_before_ = std::max(forgotten_before_, rounds_.begin()->first);
  if (members_[me] != messenger_.incarnation(messenger_.me())) {
    removed_ = removed_ || member_since_ != 0;
  } else if (member_since_ == 0) {
    member_since_ = installed.index;
  }
  forget_old_rounds();
}

void DecisionLog::compact() {
  if (raft_.log_length() <= kEntriesKept || !founding_ || applied_ != raft_.committed()) return;
  std::vector<DecisionEntry> entries{{.kind = DecisionEntry::Kind::founding, .founding = *founding_}};
  entries.front().founding.members = members_before_changes_;
  const Incarnations nobody(members_.size());
  for (const MemberChange& change : changes_)
    entries.push_back({.kind = DecisionEntry::Kind::membership,
                       .round = {.epoch = founding_->epoch, .step = change.from},
                       .decision = {.included = nobody, .lost = change.lost, .joined = change.joined}});
  for (const auto& [round, record] : rounds_) {
    if (record.proposal) entries.push_back({.kind = DecisionEntry::Kind::proposal, .round = round, .decision = *record.proposal});
    if (record.decision) entries.push_back({.kind = DecisionEntry::Kind::decision, .round = round, .decision = *record.decision});
  }
  raft_.compact(applied_, encode(entries));
}

void DecisionLog::vote(const RoundId& round, const RoundVote& vote, const Incarnations& members) {
  Vote& own = votes_[round][messenger_.me()];
  if (own.incarnation != 0) return;
  own = {messenger_.incarnation(messenger_.me()), vote};
  const OwnVote& kept = own_votes_[round] = {vote, members};
  send_vote(round, kept);
}

void DecisionLog::send_vote(const RoundId& round, const OwnVote& vote) {
  const std::vector<std::byte> body = encode(round, vote.vote);
  for (int island = 0; island < messenger_.size(); ++island)
    if (island != messenger_.me() && vote.members[static_cast<size_t>(island)] != 0)
      messenger_.send(island, {Kind::vote, round.step, round.part}, body, comm::Purpose::control);
}

const RoundVote* DecisionLog::vote_of(int island, uint64_t incarnation, const RoundId& round) const {
  const auto votes = votes_.find(round);
  if (votes == votes_.end()) return nullptr;
  const auto vote = votes->second.find(island);
  return vote == votes->second.end() || vote->second.incarnation != incarnation ? nullptr : &vote->second.vote;
}

bool DecisionLog::is_unanimous(const RoundId& round, const RoundDecision& proposal) const {
  const Incarnations nobody(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (proposal.included[i] == 0) continue;
    const RoundVote* vote = vote_of(static_cast<int>(i), proposal.included[i], round);
    if (!vote || vote->held != proposal.included || vote->stop || vote->proposed != nobody) return false;
  }
  return true;
}

const RoundDecision* DecisionLog::decision(const RoundId& round) {
  const auto found = rounds_.find(round);
  if (found == rounds_.end()) return nullptr;
  Record& record = found->second;
  if (!record.decision && record.proposal && is_unanimous(round, *record.proposal)) {
    record.decision = record.proposal;
    own_votes_.erase(round);
  }
  return record.decision ? &*record.decision : nullptr;
}

const RoundDecision* DecisionLog::proposal(const RoundId& round) const {
  const auto found = rounds_.find(round);
  return found == rounds_.end() || !found->second.proposal ? nullptr : &*found->second.proposal;
}

void DecisionLog::suspect_leader() { raft_.suspect_leader(); }

std::string DecisionLog::describe_missing() const {
  std::vector<int> missing;
  for (const int island : raft_.members())
    if (island != messenger_.me() && messenger_.lost(island)) missing.push_back(island);
  return missing.empty() ? "" : fmt::format("island{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

}  // namespace cairn::sync
