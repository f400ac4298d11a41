// Raft: a group of sites agrees on a log (Ongaro and Ousterhout 2014; membership changes of one site after Ongaro's dissertation, 4.1).
//
// Time is divided into terms. A term has at most one leader, elected by a majority of the members; only the leader appends entries.
//
//   follower --- hears no leader for an election time ---> candidate --- votes of a majority ---> leader
//      ^                                                       |                                     |
//      +--------- a higher term, or a leader of this term -----+------ a higher term, or no majority +
//
// Rules. A site keeps term, vote and log in its store and saves them before it answers.
//   1. A site votes once a term, for a candidate whose last entry has a higher term, or the same term and no lower index.
//   2. Before it raises the term, a candidate asks whether a majority would vote for it (pre-vote). Sites that hear a leader decline. So a
//      site that was cut off disturbs nobody when it returns.
//   3. The leader sends entries with the index and term of the entry before them. A follower takes them only if it has that entry, and
//      drops entries of its own that contradict them. So logs that agree in one entry agree in all before it.
//   4. An entry of the leader's own term is committed once a majority of the members has it; earlier entries are committed with it.
//      Committed entries are never lost: every later leader has them, by rule 1. Followers tell each other too which new entries they
//      have, so that each sees the majority by itself, half a round trip before the leader could tell it.
//   5. A change of members holds from the moment a site has its entry. The next change waits until it is committed, and until the leader
//      has committed an entry of its term. Changes add or remove one site, so majorities before and after overlap.
//   6. A leader that has not heard a majority for an election time steps down, so that it stops answering for the group.
//   7. A site that lost its store must not vote: it may have voted before. It takes entries, and votes once the group has removed it and
//      taken it in again (set_votes).
//
// A follower that lacks entries which the leader has replaced by a snapshot gets the snapshot (install).
#include "comm/consensus/raft.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr size_t kEntriesAtOnce = 64;
constexpr int kDoublings = 3;        // of the election time: messages may wait behind long ones on slow links
constexpr int kTimesToStepDown = 4;  // election times in which a site that stepped down starts no election

}  // namespace

Raft::Raft(Options options, RaftStore& store, std::vector<int> founders, Nanoseconds now)
    : options_(options),
      store_(store),
      state_(store.load()),
      random_(base::Random(options.seed).for_purpose("raft").for_index(static_cast<uint64_t>(options.me)).for_index(state_.term)),
      votes_(options.votes) {
  if (options_.faults.forget_vote) state_.voted_for = -1;
  if (state_.first == 1 && state_.entries.empty() && state_.snapshot_members.empty()) state_.snapshot_members = std::move(founders);
  commit_ = last_applied_ = state_.first - 1;
  if (state_.first > 1) installed_ = {commit_, state_.snapshot_members, state_.snapshot};
  find_members();
  restart_election_timer(now);
  if (is_blank() && !members_.empty() && members_.front() == me()) election_at_ = now;  // a new group need not wait for a leader
}

bool Raft::is_member(int site) const { return std::find(members_.begin(), members_.end(), site) != members_.end(); }

bool Raft::is_majority(size_t sites) const {
  return options_.faults.decide_without_majority ? 2 * sites >= members_.size() : 2 * sites > members_.size();
}

bool Raft::has_quorum(Nanoseconds now) const {
  if (role_ != Role::leader) return is_member(me()) && hears_leader(now, options_.election_max);
  size_t heard = is_member(me()) ? 1 : 0;
  for (const auto& [site, follower] : followers_) heard += is_member(site) && now - follower.heard < options_.election_max;
  return is_majority(heard);
}

bool Raft::hears_leader(Nanoseconds now, Nanoseconds within) const {
  return role_ == Role::leader || (leader_ >= 0 && heard_leader_ >= Nanoseconds{0} && now - heard_leader_ < within);
}

// Also a site that a change has removed, while the change is not committed: its vote may be needed to commit it.
bool Raft::may_stand() const { return votes_ && (is_member(me()) || members_at_ > commit_); }

uint64_t Raft::matched(int site) const {
  const auto found = followers_.find(site);
  return found == followers_.end() ? 0 : found->second.match;
}

// What is not on disk must not be answered for: after a failure the next call saves first.
void Raft::save() {
  unsaved_ = true;
  store_.save(state_);
  unsaved_ = false;
}
void Raft::save_what_failed() {
  if (unsaved_) save();
}

uint64_t Raft::term_at(uint64_t index) const {
  if (index + 1 == state_.first) return state_.snapshot_term;
  return index >= state_.first && index <= last() ? state_.entries[index - state_.first].term : 0;
}

bool Raft::is_up_to_date(uint64_t index, uint64_t log_term) const {
  return log_term > term_at(last()) || (log_term == term_at(last()) && index >= last());
}

void Raft::find_members() {
  members_ = state_.snapshot_members;
  members_at_ = 0;
  for (size_t i = 0; i < state_.entries.size(); ++i) {
    if (state_.entries[i].kind != RaftEntry::Kind::members) continue;
    members_ = state_.entries[i].members;
    members_at_ = state_.first + i;
  }
}

void Raft::restart_election_timer(Nanoseconds now) {
  const double part = random_.uniform(drawn_++);
  const Nanoseconds wait =
      options_.election_min +
      Nanoseconds(static_cast<int64_t>(part * static_cast<double>((options_.election_max - options_.election_min).count())));
  election_at_ = now + wait * (1 << std::min(elections_, kDoublings));
}

void Raft::become_follower(uint64_t term, int leader, Nanoseconds now) {
  if (term > state_.term) {
    state_.term = term;
    state_.voted_for = -1;
    save();
    leader_ = -1;
  }
  if (role_ != Role::follower || leader != leader_) {
    restart_election_timer(now);
    agreed_ = 0;
    others_.clear();
  }
  role_ = Role::follower;
  leader_ = leader;
  followers_.clear();
}

void Raft::alive(int site, Nanoseconds now) {
  if (const auto follower = followers_.find(site); follower != followers_.end()) follower->second.heard = now;
  if (role_ != Role::follower || site != leader_) return;
  heard_leader_ = now;
  restart_election_timer(now);
}

void Raft::links_changed(Nanoseconds now) {
  if (std::exchange(elections_, 0) > 0) restart_election_timer(now);
}

// Tells the followers, which would take this site for their leader as long as it lives.
void Raft::resign(Nanoseconds now) {
  for (const auto& [site, follower] : followers_) send(site, {.kind = RaftMessage::Kind::resign, .term = state_.term});
  become_follower(state_.term, -1, now);
}

void Raft::suspect_leader() {
  if (role_ == Role::follower) leader_ = -1;
}

void Raft::step_down(Nanoseconds now) {
  resign(now);
  election_at_ = now + kTimesToStepDown * options_.election_max;
}

void Raft::send(int to, RaftMessage message) { outgoing_.push_back({to, std::move(message)}); }

void Raft::tick(Nanoseconds now) {
  save_what_failed();
  if (role_ == Role::leader) {
    if (!has_quorum(now)) return resign(now);
    if (now >= heartbeat_at_) send_to_all(now);
  } else if (now >= election_at_ && may_stand()) {
    start_election(Role::pre_candidate, now);
  }
}

void Raft::start_election(Role role, Nanoseconds now) {
  if (role == Role::pre_candidate) ++elections_;
  restart_election_timer(now);
  role_ = role;
  leader_ = -1;
  voters_.clear();
  if (role == Role::candidate) {
    ++state_.term;
    state_.voted_for = me();
    save();
  }
  const bool pre = role == Role::pre_candidate;
  for (const int site : members_)
    if (site != me())
      send(site, {.kind = pre ? RaftMessage::Kind::pre_vote : RaftMessage::Kind::vote,
                  .term = state_.term + (pre ? 1 : 0),
                  .index = last(),
                  .log_term = term_at(last())});
  count_vote(me(), now);
}

void Raft::count_vote(int from, Nanoseconds now) {
  if (is_member(from)) voters_.insert(from);
  if (!is_majority(voters_.size())) return;
  if (role_ == Role::pre_candidate) {
    start_election(Role::candidate, now);
  } else {
    become_leader(now);
  }
}

void Raft::become_leader(Nanoseconds now) {
  role_ = Role::leader;
  elections_ = 0;
  leader_ = me();
  followers_.clear();
  for (const int site : members_)
    if (site != me()) followers_[site] = {.next = last() + 1, .match = 0, .heard = now};
  append({.term = state_.term, .kind = RaftEntry::Kind::no_op}, now);
}

uint64_t Raft::append(RaftEntry entry, Nanoseconds now) {
  const std::vector<int> before = members_;
  state_.entries.push_back(std::move(entry));
  save();
  find_members();
  for (const int site : members_)  // a site that comes again may have lost what it had
    if (site != me() && std::find(before.begin(), before.end(), site) == before.end())
      followers_[site] = {.next = last(), .match = 0, .heard = now};
  if (options_.faults.apply_before_commit) commit_up_to(last());
  commit_by_majority(now);
  send_to_all(now);
  return last();
}

std::optional<uint64_t> Raft::propose(std::vector<std::byte> value, Nanoseconds now) {
  save_what_failed();
  if (role_ != Role::leader) return std::nullopt;
  return append({.term = state_.term, .kind = RaftEntry::Kind::value, .members = {}, .body = std::move(value)}, now);
}

std::optional<uint64_t> Raft::propose_members(std::vector<int> members, Nanoseconds now) {
  save_what_failed();
  if (!leads_with_full_log() || members_at_ > commit_) return std::nullopt;
  std::sort(members.begin(), members.end());
  std::vector<int> changed;
  std::set_symmetric_difference(members.begin(), members.end(), members_.begin(), members_.end(), std::back_inserter(changed));
  CAIRN_CHECK(changed.size() == 1 && !members.empty(), "a change of {} members at once, to {}", changed.size(), members.size());
  return append({.term = state_.term, .kind = RaftEntry::Kind::members, .members = std::move(members)}, now);
}

void Raft::send_to_all(Nanoseconds now) {
  heartbeat_at_ = now + options_.heartbeat;
  for (const auto& [site, follower] : followers_) send_append(site);
}

void Raft::send_append(int to) {
  const Follower& follower = followers_.at(to);
  if (follower.next < state_.first)
    return send(to, {.kind = RaftMessage::Kind::install,
                     .term = state_.term,
                     .index = state_.first - 1,
                     .log_term = state_.snapshot_term,
                     .commit = commit_,
                     .members = state_.snapshot_members,
                     .snapshot = state_.snapshot});
  RaftMessage message{.kind = RaftMessage::Kind::append,
                      .term = state_.term,
                      .index = follower.next - 1,
                      .log_term = term_at(follower.next - 1),
                      .commit = commit_};
  for (uint64_t index = follower.next; index <= last() && message.entries.size() < kEntriesAtOnce; ++index)
    message.entries.push_back(state_.entries[index - state_.first]);
  send(to, std::move(message));
}

void Raft::receive(int from, const RaftMessage& message, Nanoseconds now) {
  using Kind = RaftMessage::Kind;
  save_what_failed();
  const bool is_pre_vote = message.kind == Kind::pre_vote || (message.kind == Kind::pre_vote_reply && message.granted);
  if (message.term > state_.term && !is_pre_vote) become_follower(message.term, -1, now);
  const bool old = message.term < state_.term && !options_.faults.answer_from_old_term;
  switch (message.kind) {
    case Kind::resign:
      if (!old && from == leader_) become_follower(state_.term, -1, now);
      return;
    case Kind::pre_vote: {
      if (from == leader_) become_follower(state_.term, -1, now);  // it no longer leads
      const bool granted = votes_ && message.term > state_.term && !hears_leader(now, options_.election_min) &&
                           is_up_to_date(message.index, message.log_term);
      return send(from, {.kind = Kind::pre_vote_reply, .term = granted ? message.term : state_.term, .granted = granted});
    }
    case Kind::vote:
      return on_vote(from, message, now);
    case Kind::pre_vote_reply:
      if (message.granted && role_ == Role::pre_candidate && message.term == state_.term + 1) count_vote(from, now);
      return;
    case Kind::vote_reply:
      if (message.granted && role_ == Role::candidate && !old) count_vote(from, now);
      return;
    case Kind::append:
      return on_append(from, message, now);
    case Kind::install:
      return on_install(from, message, now);
    case Kind::append_reply:
      if (old) return;
      return role_ == Role::leader ? on_append_reply(from, message, now) : on_others_reply(from, message);
  }
}

void Raft::on_vote(int from, const RaftMessage& message, Nanoseconds now) {
  const bool granted = votes_ && message.term == state_.term && role_ != Role::leader &&
                       (state_.voted_for == -1 || state_.voted_for == from) && is_up_to_date(message.index, message.log_term);
  if (granted) {
    if (state_.voted_for != from) {
      state_.voted_for = from;
      save();
    }
    restart_election_timer(now);
  }
  send(from, {.kind = RaftMessage::Kind::vote_reply, .term = state_.term, .granted = granted});
}

// False: the sender was the leader of an earlier term.
bool Raft::accept_leader(int from, const RaftMessage& message, Nanoseconds now) {
  if (message.term < state_.term) return false;
  become_follower(message.term, from, now);
  heard_leader_ = now;
  elections_ = 0;
  restart_election_timer(now);
  return true;
}

void Raft::on_append(int from, const RaftMessage& message, Nanoseconds now) {
  RaftMessage reply{.kind = RaftMessage::Kind::append_reply, .term = state_.term};
  if (!accept_leader(from, message, now)) return send(from, std::move(reply));
  // Entries before the snapshot's end are committed, so they agree.
  const bool agrees = message.index + 1 < state_.first || (message.index <= last() && term_at(message.index) == message.log_term);
  if (!agrees) {
    reply.index = std::min(message.index == 0 ? 0 : message.index - 1, last());
    return send(from, std::move(reply));
  }
  take_entries(message);
  reply.granted = true;
  reply.index = message.index + message.entries.size();
  agreed_ = std::max(agreed_, reply.index);
  commit_up_to(std::min(message.commit, reply.index));
  if (!message.entries.empty())
    for (const int site : members_)
      if (site != me() && site != from) send(site, reply);
  send(from, std::move(reply));
  commit_by_majority(now);
}

// What another follower has told the leader.
void Raft::on_others_reply(int from, const RaftMessage& message) {
  if (!message.granted || (message.term != state_.term && !options_.faults.answer_from_old_term) || leader_ < 0) return;
  uint64_t& match = others_[from];
  match = std::max(match, message.index);
  commit_by_majority(Nanoseconds{0});
}

void Raft::take_entries(const RaftMessage& message) {
  bool changed = false;
  for (size_t i = 0; i < message.entries.size(); ++i) {
    const uint64_t index = message.index + 1 + i;
    if (index < state_.first || (index <= last() && term_at(index) == message.entries[i].term)) continue;
    CAIRN_CHECK(index > commit_ || options_.faults.apply_before_commit, "entry {} of term {} contradicts a committed one", index,
                message.entries[i].term);
    state_.entries.resize(index - state_.first);
    state_.entries.push_back(message.entries[i]);
    if (options_.faults.apply_before_commit) {
      commit_ = std::min(commit_, index - 1);
      commit_up_to(index);
    }
    changed = true;
  }
  if (!changed) return;
  save();
  find_members();
}

void Raft::on_append_reply(int from, const RaftMessage& message, Nanoseconds now) {
  const auto found = followers_.find(from);
  if (found == followers_.end()) return;
  Follower& follower = found->second;
  follower.heard = now;
  if (!message.granted) {
    follower.next = std::max<uint64_t>(std::min(message.index + 1, follower.next - 1), follower.match + 1);
    return send_append(from);
  }
  follower.match = std::max(follower.match, message.index);
  follower.next = std::max(follower.next, follower.match + 1);
  commit_by_majority(now);
  if (role_ == Role::leader && followers_.contains(from) && follower.next <= last()) send_append(from);
}

void Raft::on_install(int from, const RaftMessage& message, Nanoseconds now) {
  RaftMessage reply{.kind = RaftMessage::Kind::append_reply, .term = state_.term};
  if (!accept_leader(from, message, now)) return send(from, std::move(reply));
  reply.granted = true;
  reply.index = std::max(message.index, commit_);
  if (message.index > commit_) {
    const bool has_it = message.index <= last() && term_at(message.index) == message.log_term;
    if (has_it) {
      state_.entries.erase(state_.entries.begin(), state_.entries.begin() + static_cast<std::ptrdiff_t>(message.index + 1 - state_.first));
    } else {
      state_.entries.clear();
    }
    state_.first = message.index + 1;
    state_.snapshot_term = message.log_term;
    state_.snapshot_members = message.members;
    state_.snapshot = message.snapshot;
    save();
    find_members();
    agreed_ = std::max(agreed_, message.index);
    commit_ = last_applied_ = message.index;
    committed_.clear();
    installed_ = {message.index, message.members, message.snapshot};
  }
  send(from, std::move(reply));
}

// On the leader, and on a follower up to where its log agrees with the leader's. The leader has all that it sent.
void Raft::commit_by_majority(Nanoseconds now) {
  if (role_ != Role::leader && leader_ < 0) return;
  for (uint64_t index = leads() ? last() : std::min(agreed_, last()); index > commit_ && term_at(index) == state_.term; --index) {
    size_t have = is_member(me()) ? 1 : 0;
    if (!leads()) have += is_member(leader_);
    for (const auto& [site, follower] : followers_) have += is_member(site) && follower.match >= index;
    for (const auto& [site, match] : others_) have += !leads() && site != leader_ && is_member(site) && match >= index;
    if (!is_majority(have)) continue;
    commit_up_to(index);
    break;
  }
  if (leads()) drop_removed_followers(now);
}

// Sites that a committed change removed get no more entries once they have that one; a leader that removed itself is done.
void Raft::drop_removed_followers(Nanoseconds now) {
  if (members_at_ > commit_) return;
  std::erase_if(followers_, [&](const auto& one) { return !is_member(one.first) && one.second.match >= members_at_; });
  if (!is_member(me()) && commit_ == last()) resign(now);
}

void Raft::commit_up_to(uint64_t index) {
  commit_ = std::max(commit_, std::min(index, last()));
  for (; last_applied_ < commit_; ++last_applied_)
    if (last_applied_ + 1 >= state_.first) committed_.push_back({last_applied_ + 1, state_.entries[last_applied_ + 1 - state_.first]});
}

void Raft::compact(uint64_t index, std::vector<std::byte> snapshot) {
  CAIRN_CHECK(index <= commit_, "a snapshot up to entry {}, of which {} are committed", index, commit_);
  if (index < state_.first) return;
  state_.snapshot_term = term_at(index);
  const auto gone = state_.entries.begin() + static_cast<std::ptrdiff_t>(index + 1 - state_.first);
  for (auto entry = state_.entries.begin(); entry != gone; ++entry)
    if (entry->kind == RaftEntry::Kind::members) state_.snapshot_members = entry->members;
  state_.entries.erase(state_.entries.begin(), gone);
  state_.first = index + 1;
  state_.snapshot = std::move(snapshot);
  save();
  find_members();
}

std::vector<Raft::Outgoing> Raft::take_outgoing() { return std::exchange(outgoing_, {}); }
std::vector<Raft::Committed> Raft::take_committed() { return std::exchange(committed_, {}); }
std::optional<Raft::Installed> Raft::take_installed() { return std::exchange(installed_, std::nullopt); }

}  // namespace cairn::comm
