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
//      Committed entries are never lost: every later leader has them, by rule 1.
//   5. A change of members holds from the moment a site has its entry. The next change waits until it is committed, and until the leader
//      has committed an entry of its term. Changes add or remove one site, so majorities before and after overlap.
//   6. A leader that has not heard a majority for an election time steps down, so that it stops answering for the group.
//
// A follower that lacks entries which the leader has replaced by a summary gets the summary (install).
#include "comm/consensus/raft.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr size_t kEntriesAtOnce = 64;

}  // namespace

Raft::Raft(Options options, RaftStore& store, std::vector<int> founders, Nanoseconds now)
    : options_(options),
      store_(store),
      state_(store.load()),
      random_(base::Random(options.seed).for_purpose("raft").for_index(state_.term)) {
  if (options_.faults.forget_vote) state_.voted_for = -1;
  if (state_.first == 1 && state_.entries.empty() && state_.summary_members.empty()) state_.summary_members = std::move(founders);
  commit_ = given_ = state_.first - 1;
  find_members();
  restart_election_timer(now);
}

bool Raft::is_member(int site) const { return std::find(members_.begin(), members_.end(), site) != members_.end(); }

bool Raft::is_majority(size_t sites) const {
  return options_.faults.decide_without_majority ? 2 * sites >= members_.size() : 2 * sites > members_.size();
}

bool Raft::in_majority(Nanoseconds now) const {
  if (role_ != Role::leader) return leader_ >= 0 && heard_leader_ >= Nanoseconds{0} && now - heard_leader_ < options_.election_max;
  size_t heard = is_member(me()) ? 1 : 0;
  for (const auto& [site, follower] : followers_) heard += is_member(site) && now - follower.heard < options_.election_max;
  return is_majority(heard);
}

uint64_t Raft::term_at(uint64_t index) const {
  if (index + 1 == state_.first) return state_.summary_term;
  return index >= state_.first && index <= last() ? state_.entries[index - state_.first].term : 0;
}

bool Raft::is_up_to_date(uint64_t index, uint64_t log_term) const {
  return log_term > term_at(last()) || (log_term == term_at(last()) && index >= last());
}

void Raft::find_members() {
  members_ = state_.summary_members;
  for (const RaftEntry& entry : state_.entries)
    if (entry.kind == RaftEntry::Kind::members) members_ = entry.members;
}

void Raft::restart_election_timer(Nanoseconds now) {
  const double part = random_.uniform(drawn_++);
  election_at_ = now + options_.election_min +
                 Nanoseconds(static_cast<int64_t>(part * static_cast<double>((options_.election_max - options_.election_min).count())));
}

void Raft::become_follower(uint64_t term, int leader, Nanoseconds now) {
  if (term > state_.term) {
    state_.term = term;
    state_.voted_for = -1;
    save();
  }
  if (role_ != Role::follower || leader != leader_) restart_election_timer(now);
  role_ = Role::follower;
  phase_ = Phase::none;
  leader_ = leader;
  followers_.clear();
}

void Raft::send(int to, RaftMessage message) { outgoing_.push_back({to, std::move(message)}); }

void Raft::tick(Nanoseconds now) {
  if (role_ == Role::leader) {
    if (!in_majority(now)) return become_follower(state_.term, -1, now);
    if (now >= heartbeat_at_) send_to_all(now);
  } else if (now >= election_at_ && is_member(me())) {
    start_election(Phase::pre_vote, now);
  }
}

void Raft::start_election(Phase phase, Nanoseconds now) {
  restart_election_timer(now);
  role_ = Role::candidate;
  phase_ = phase;
  leader_ = -1;
  votes_.clear();
  if (phase == Phase::vote) {
    ++state_.term;
    state_.voted_for = me();
    save();
  }
  const bool pre = phase == Phase::pre_vote;
  for (const int site : members_)
    if (site != me())
      send(site, {.kind = pre ? RaftMessage::Kind::pre_vote : RaftMessage::Kind::vote,
                  .term = state_.term + (pre ? 1 : 0),
                  .index = last(),
                  .log_term = term_at(last())});
  count_vote(me(), now);
}

void Raft::count_vote(int from, Nanoseconds now) {
  if (is_member(from)) votes_.insert(from);
  if (!is_majority(votes_.size())) return;
  if (phase_ == Phase::pre_vote) {
    start_election(Phase::vote, now);
  } else {
    become_leader(now);
  }
}

void Raft::become_leader(Nanoseconds now) {
  role_ = Role::leader;
  phase_ = Phase::none;
  leader_ = me();
  followers_.clear();
  for (const int site : members_)
    if (site != me()) followers_[site] = {.next = last() + 1, .match = 0, .heard = now};
  append({.term = state_.term, .kind = RaftEntry::Kind::none}, now);
}

uint64_t Raft::append(RaftEntry entry, Nanoseconds now) {
  const bool changes_members = entry.kind == RaftEntry::Kind::members;
  state_.entries.push_back(std::move(entry));
  save();
  if (changes_members) {
    find_members();
    for (const int site : members_)
      if (site != me() && !followers_.contains(site)) followers_[site] = {.next = last(), .match = 0, .heard = now};
  }
  if (options_.faults.apply_before_commit) commit_up_to(last());
  commit_by_majority(now);
  send_to_all(now);
  return last();
}

std::optional<uint64_t> Raft::propose(std::vector<std::byte> value, Nanoseconds now) {
  if (role_ != Role::leader) return std::nullopt;
  return append({.term = state_.term, .kind = RaftEntry::Kind::value, .members = {}, .body = std::move(value)}, now);
}

std::optional<uint64_t> Raft::propose_members(std::vector<int> members, Nanoseconds now) {
  if (role_ != Role::leader || term_at(commit_) != state_.term) return std::nullopt;
  for (uint64_t index = std::max(commit_ + 1, state_.first); index <= last(); ++index)
    if (state_.entries[index - state_.first].kind == RaftEntry::Kind::members) return std::nullopt;
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
                     .log_term = state_.summary_term,
                     .commit = commit_,
                     .members = state_.summary_members,
                     .summary = state_.summary});
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
  const bool is_pre_vote = message.kind == Kind::pre_vote || (message.kind == Kind::pre_vote_reply && message.granted);
  if (message.term > state_.term && !is_pre_vote) become_follower(message.term, -1, now);
  const bool old = message.term < state_.term && !options_.faults.answer_from_old_term;
  switch (message.kind) {
    case Kind::pre_vote: {
      const bool hears_leader =
          role_ == Role::leader || (leader_ >= 0 && heard_leader_ >= Nanoseconds{0} && now - heard_leader_ < options_.election_min);
      const bool granted = message.term > state_.term && !hears_leader && is_up_to_date(message.index, message.log_term);
      return send(from, {.kind = Kind::pre_vote_reply, .term = granted ? message.term : state_.term, .granted = granted});
    }
    case Kind::vote:
      return on_vote(from, message, now);
    case Kind::pre_vote_reply:
      if (message.granted && phase_ == Phase::pre_vote && message.term == state_.term + 1) count_vote(from, now);
      return;
    case Kind::vote_reply:
      if (message.granted && phase_ == Phase::vote && !old) count_vote(from, now);
      return;
    case Kind::append:
      return on_append(from, message, now);
    case Kind::install:
      return on_install(from, message, now);
    case Kind::append_reply:
      if (role_ == Role::leader && !old) on_append_reply(from, message, now);
      return;
  }
}

void Raft::on_vote(int from, const RaftMessage& message, Nanoseconds now) {
  const bool granted = message.term == state_.term && role_ != Role::leader && (state_.voted_for == -1 || state_.voted_for == from) &&
                       is_up_to_date(message.index, message.log_term);
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
  restart_election_timer(now);
  return true;
}

void Raft::on_append(int from, const RaftMessage& message, Nanoseconds now) {
  RaftMessage reply{.kind = RaftMessage::Kind::append_reply, .term = state_.term};
  if (!accept_leader(from, message, now)) return send(from, std::move(reply));
  // Entries before the summary's end are committed, so they agree.
  const bool agrees = message.index + 1 < state_.first || (message.index <= last() && term_at(message.index) == message.log_term);
  if (agrees) {
    take_entries(message);
    reply.granted = true;
    reply.index = message.index + message.entries.size();
    commit_up_to(std::min(message.commit, reply.index));
  } else {
    reply.index = std::min(message.index - 1, last());
  }
  send(from, std::move(reply));
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
    state_.summary_term = message.log_term;
    state_.summary_members = message.members;
    state_.summary = message.summary;
    save();
    find_members();
    commit_ = given_ = message.index;
    committed_.clear();
    installed_ = {message.index, message.members, message.summary};
  }
  send(from, std::move(reply));
}

void Raft::commit_by_majority(Nanoseconds now) {
  for (uint64_t index = last(); index > commit_ && term_at(index) == state_.term; --index) {
    size_t have = is_member(me()) ? 1 : 0;
    for (const auto& [site, follower] : followers_) have += is_member(site) && follower.match >= index;
    if (!is_majority(have)) continue;
    commit_up_to(index);
    break;
  }
  // Sites that a committed change removed get no more entries; a leader that removed itself is done.
  if (term_at(commit_) != state_.term) return;
  std::erase_if(followers_, [&](const auto& one) { return !is_member(one.first) && one.second.match >= commit_; });
  if (role_ == Role::leader && !is_member(me()) && commit_ == last()) become_follower(state_.term, -1, now);
}

void Raft::commit_up_to(uint64_t index) {
  commit_ = std::max(commit_, std::min(index, last()));
  for (; given_ < commit_; ++given_)
    if (given_ + 1 >= state_.first) committed_.push_back({given_ + 1, state_.entries[given_ + 1 - state_.first]});
}

void Raft::compact(uint64_t index, std::vector<std::byte> summary) {
  CAIRN_CHECK(index <= commit_, "a summary up to entry {}, of which {} are committed", index, commit_);
  if (index < state_.first) return;
  state_.summary_term = term_at(index);
  const auto gone = state_.entries.begin() + static_cast<std::ptrdiff_t>(index + 1 - state_.first);
  for (auto entry = state_.entries.begin(); entry != gone; ++entry)
    if (entry->kind == RaftEntry::Kind::members) state_.summary_members = entry->members;
  state_.entries.erase(state_.entries.begin(), gone);
  state_.first = index + 1;
  state_.summary = std::move(summary);
  save();
}

std::vector<Raft::Outgoing> Raft::take_outgoing() { return std::exchange(outgoing_, {}); }
std::vector<Raft::Committed> Raft::take_committed() { return std::exchange(committed_, {}); }
std::optional<Raft::Installed> Raft::take_installed() { return std::exchange(installed_, std::nullopt); }

}  // namespace cairn::comm
