// Membership where rounds are among a few islands (NoLoCo, gossip). Such rounds decide nothing together, so entries of their own in the log
// say who takes part, each from a step on that lies two rounds ahead:
//
//   leaving   The leader asks all members about every second. It removes one that cannot be reached, has started again, or has answered
//             nothing for sync.island.timeout_s. Until that holds, its partners skip their rounds with it. Members do not wait for a
//             leader that is silent for so long: they vote for another one.
//   joining   A newcomer gets the state of a sponsor after some round and tells all islands that it is ready. The leader adds it. It begins
//             with the first round that it is a member of; what the others did since the state was sent it takes from its partners.
//
// Each island has a model of its own, so a restart of all uses every island's own snapshot. An island that is behind the furthest one takes
// that one's state, as a newcomer does.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "sync/islands/membership.h"
#include "sync/islands/membership_bytes.h"

namespace cairn::sync {

using Kind = MessageTag::Kind;
using Nanoseconds = std::chrono::nanoseconds;
using StartPoint = IslandExchange::StartPoint;

bool IslandMembership::is_silent(int island) const {
  const Nanoseconds since = unanswered_since_[static_cast<size_t>(island)];
  return since != kLongAgo && messenger_.heard_at(island) < since && messenger_.now() - since > quorum_.timeout();
}

void IslandMembership::keep_members(int64_t now) {
  // After a pause of its own this island cannot tell who was silent.
  if (messenger_.now() - std::exchange(kept_members_, messenger_.now()) > quorum_.timeout())
    std::fill(unanswered_since_.begin(), unanswered_since_.end(), kLongAgo);
  poll();
  ask_all();
  quorum_.follow_log();
  if (mine_.phase != Phase::works) return;
  // No round waits for the leader, so nobody else notices that it does nothing.
  if (const int leader = decisions_.leader(); leader >= 0 && leader != messenger_.me() && is_silent(leader)) decisions_.suspect_leader();
  if (!decisions_.leads()) return;
  const Incarnations& members = decisions_.members();
  const Incarnations nobody(members.size());
  const int64_t from = now + 2 * peer_round_steps_;
  RoundDecision change{.included = nobody, .lost = nobody, .joined = nobody};
  for (int island = 0; island < messenger_.size(); ++island) {
    const auto i = static_cast<size_t>(island);
    if (island == messenger_.me()) continue;
    if (members[i] != 0 && (is_gone(island, members[i]) || is_silent(island))) change.lost[i] = members[i];
    const bool in_time = steps_ == 0 || from <= steps_;
    if (ready_[i] != 0 && members[i] != ready_[i] && !is_gone(island, ready_[i]) && in_time) change.joined[i] = std::exchange(ready_[i], 0);
  }
  if (change.lost == nobody && change.joined == nobody) return;
  decisions_.propose({.kind = DecisionEntry::Kind::membership,
                      .round = {decisions_.epoch(), from, static_cast<int32_t>(decisions_.changes())},
                      .decision = std::move(change)});
}

std::optional<StartPoint> IslandMembership::join_peers(State& own, State& state, int64_t sent) {
  StartPoint start_point{.step = sent, .state_replaced = true};
  const auto me = static_cast<size_t>(messenger_.me());
  const auto is_member = [&] { return decisions_.members()[me] == messenger_.incarnation(messenger_.me()); };
  Nanoseconds said = kLongAgo;
  while (!state_is_final_[static_cast<size_t>(sponsor_)] && !is_member()) {
    const Status* status = status_of(sponsor_);
    // A sponsor that has ended since has a later state.
    if (is_sponsor_gone() || ended_by_tick_ || is_founder() || !status || status->phase != Phase::works) return std::nullopt;
    if (messenger_.now() - said > membership::kAskAgainAfter) {
      said = messenger_.now();
      for (int island = 0; island < messenger_.size(); ++island)
        if (island != messenger_.me()) messenger_.send(island, {Kind::ready, 0, 0}, {}, comm::Purpose::control);
    }
    wait_briefly(is_member);
    poll();
    ask_all();
  }
  own = state;
  start_point.joined = is_member();
  if (start_point.joined) start_point.step = std::max(sent, decisions_.member_from().value_or(sent) - peer_round_steps_);
  start_point.epoch = mine_.epoch = known_[static_cast<size_t>(sponsor_)].status.epoch;
  entered_epoch_ = std::max(entered_epoch_, start_point.epoch);
  decisions_.set_votes(true);
  decisions_.set_joined(0);
  quorum_.set_members(decisions_.members(), start_point.epoch);
  set_status(Phase::works, start_point.step, 0, false);
  log_.info("joined the other islands: {} train from step {} on", quorum_.count(), start_point.step + 1);
  return start_point;
}

}  // namespace cairn::sync
