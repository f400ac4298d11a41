// Joining a run in progress: the newcomer's side, and that of its sponsor. membership.cpp draws it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "sync/islands/membership.h"
#include "sync/islands/membership_bytes.h"

namespace cairn::sync {

using membership::bytes_of;
using membership::ForwardedHeader;
using membership::kAskAgainAfter;
using Kind = MessageTag::Kind;
using Nanoseconds = std::chrono::nanoseconds;
using StartPoint = IslandExchange::StartPoint;

namespace {

constexpr auto kStateLimit = std::chrono::seconds(10);   // for the first piece of the state
constexpr auto kForwardLimit = std::chrono::seconds(5);  // for the round by which this island takes part, once it is over for the sponsor

}  // namespace

MessageTag IslandMembership::state_tag(StateFor use, int64_t step, size_t fragment, int32_t row) {
  return {Kind::state, step, static_cast<int32_t>(4 * fragment) + 2 * static_cast<int32_t>(use) + row};
}

void IslandMembership::send_state(int island, StateFor use, const State& state, int64_t now) {
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    messenger_.send(island, state_tag(use, now, f, 0), bytes_of(state.anchors[f]), comm::Purpose::state);
    messenger_.send(island, state_tag(use, now, f, 1), bytes_of(state.momenta[f]), comm::Purpose::state);
  }
  if (state.numbers.defined())
    messenger_.send(island, state_tag(use, now, state.anchors.size(), 0), membership::bytes_of_numbers(state.numbers),
                    comm::Purpose::state);
  // Arrives last: the state is complete then.
  messenger_.send(island, {Kind::state_sent, now, static_cast<int32_t>(use)}, {}, comm::Purpose::control);
}

at::Tensor IslandMembership::receive_row(int from, const MessageTag& tag, int64_t elements) {
  const std::vector<std::byte>* body = messenger_.find(from, tag);
  if (body && elements < 0 && body->size() % 4 == 0) elements = static_cast<int64_t>(body->size()) / 4;
  if (!body || static_cast<int64_t>(body->size()) != elements * 4)
    throw Error(Error::Kind::lost_peer, fmt::format("island {} sent a model of another shape: all islands need the same recipe", from));
  at::Tensor row = at::empty({elements}, at::kFloat);
  std::memcpy(row.mutable_data_ptr<float>(), body->data(), body->size());
  messenger_.take(from, tag);
  return row;
}

// False: the sender was lost, or has not sent it.
bool IslandMembership::receive_state(int from, uint64_t incarnation, StateFor use, State& state) {
  int64_t& step = state_step_[static_cast<size_t>(use)][static_cast<size_t>(from)];
  const Nanoseconds begun = messenger_.now();
  while (step < 0) {
    const bool late = messenger_.now() - begun > kStateLimit && !messenger_.has_any(from, Kind::state);
    if (is_gone(from, incarnation) || ended_by_tick_ || late) return false;
    wait_briefly([&] { return step >= 0; });
  }
  const auto length = [&](const at::Tensor& own) { return any_length_ ? -1 : own.numel(); };
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    state.anchors[f] = receive_row(from, state_tag(use, step, f, 0), length(state.anchors[f]));
    state.momenta[f] = receive_row(from, state_tag(use, step, f, 1), length(state.momenta[f]));
  }
  if (state.numbers.defined()) {
    const MessageTag tag = state_tag(use, step, state.anchors.size(), 0);
    const std::vector<std::byte>* body = messenger_.find(from, tag);
    if (!body || body->size() != membership::bytes_of_numbers(state.numbers).size()) return false;
    state.numbers = state.numbers.clone();
    std::memcpy(state.numbers.mutable_data_ptr<double>(), body->data(), body->size());
    messenger_.take(from, tag);
  }
  step = -1;
  return true;
}

// Nothing: the sponsor was lost, or has lost the others.
std::optional<StartPoint> IslandMembership::join(int sponsor, State& own) {
  State state = own;  // it is this island's own again if the sponsor is lost on the way
  log_.info("the other islands are training: joining them through island {}", sponsor);
  sponsor_ = sponsor;
  sponsor_incarnation_ = messenger_.incarnation(sponsor);
  forwarded_.clear();
  forwards_received_ = 0;
  misses_round_ = took_state_ = false;
  int64_t& sent = state_step_[static_cast<size_t>(StateFor::joiner)][static_cast<size_t>(sponsor)];
  const auto me = static_cast<size_t>(messenger_.me());
  const auto sponsor_is = [&](Phase phase) {
    const Status* status = status_of(sponsor);
    return status && status->phase == phase;
  };
  const auto useless = [&] { return is_sponsor_gone() || ended_by_tick_ || is_founder() || sponsor_is(Phase::waits); };
  Nanoseconds asked = kLongAgo;
  while (sent < 0) {
    if (useless()) return std::nullopt;
    if (messenger_.now() - asked > kAskAgainAfter) {
      asked = messenger_.now();
      messenger_.send(sponsor, {Kind::join, 0, 0}, {}, comm::Purpose::control);
    }
    wait_briefly([&] { return sent >= 0; });
    poll();
    ask_all();
  }
  StartPoint start_point{.step = sent, .state_replaced = true};
  uint64_t applied = 0;  // entries of the log that say that this island takes part
  took_state_ = true;
  if (!receive_state(sponsor, sponsor_incarnation_, StateFor::joiner, state)) return std::nullopt;
  if (peer_round_steps_ > 0) return join_peers(own, state, start_point.step);
  messenger_.send(sponsor, {Kind::ready, 0, 0}, {}, comm::Purpose::control);
  Nanoseconds in_time = messenger_.now();  // the last time at which the sponsor did not count on this island yet
  while (true) {
    if (misses_round_) return std::nullopt;
    if (forwarded_.empty()) {
      const Status* status = status_of(sponsor);
      if (!status || status->entered != messenger_.incarnation(messenger_.me())) in_time = messenger_.now();
      if (messenger_.now() - in_time > kForwardLimit) return std::nullopt;  // a break of the link ate what it forwarded
      // What it has forwarded is the final state.
      if (sponsor_is(Phase::ended) && status_of(sponsor)->forwards == forwards_received_) break;
      if (useless()) return std::nullopt;
      wait_briefly([&] { return !forwarded_.empty(); });
      poll();
      ask_all();
      continue;
    }
    const ForwardedRound round = forwarded_.front();
    const size_t f = static_cast<size_t>(round.part) % state.anchors.size();
    const at::Tensor gradient = take_forwarded_round(round.step, round.part, any_length_ ? -1 : state.anchors[f].numel());
    if (gradient.defined()) outer_step_(state.anchors[f], state.momenta[f], gradient, round.step, round.numbers);
    if (round.numbers.defined() && state.numbers.defined() && round.numbers.numel() == state.numbers.numel()) state.numbers = round.numbers;
    start_point.step = round.now;
    applied = round.applied;
    start_point.joined = round.members[me] == messenger_.incarnation(messenger_.me());
    if (start_point.joined && (steps_ == 0 || round.now < steps_)) break;  // else the last rounds have begun without this island
  }
  own = state;
  decisions_.set_votes(true);
  start_point.epoch = mine_.epoch = known_[static_cast<size_t>(sponsor)].status.epoch;
  entered_epoch_ = std::max(entered_epoch_, start_point.epoch);
  decisions_.set_joined(applied);
  set_status(Phase::works, start_point.step, 0, false);
  log_.info("joined the other islands: {} train together from step {} on", quorum_.count(), start_point.step + 1);
  return start_point;
}

bool IslandMembership::has_join_requests() const {
  for (size_t i = 0; i < join_requests_.size(); ++i)
    if (join_requests_[i] != 0 && !is_gone(static_cast<int>(i), join_requests_[i])) return true;
  return false;
}

void IslandMembership::send_state_to_joiners(int64_t now, const State& state) {
  for (size_t i = 0; i < join_requests_.size(); ++i) {
    const uint64_t incarnation = std::exchange(join_requests_[i], 0);
    if (incarnation == 0 || is_gone(static_cast<int>(i), incarnation)) continue;
    sponsored_[i] = incarnation;
    forwards_sent_[i] = 0;
    log_.info("island {} joins with the state of step {}", i, now);
    send_state(static_cast<int>(i), StateFor::joiner, state, now);
  }
}

void IslandMembership::forward_round(const Incarnations& members, const AppliedRound& round) {
  const auto after = std::as_bytes(std::span(quorum_.members())), numbers = membership::bytes_of_numbers(round.numbers);
  for (size_t i = 0; i < sponsored_.size(); ++i) {
    if (sponsored_[i] == 0 || members[i] == sponsored_[i]) continue;
    if (messenger_.incarnation(static_cast<int>(i)) != sponsored_[i]) {  // it has started over
      sponsored_[i] = 0;
      continue;
    }
    std::vector<std::byte> body =
        bytes_of(ForwardedHeader{round.now, round.gradient.defined() ? 1 : 0, ++forwards_sent_[i], decisions_.applied()});
    body.insert(body.end(), after.begin(), after.end());
    body.insert(body.end(), numbers.begin(), numbers.end());
    if (round.gradient.defined())
      messenger_.send(static_cast<int>(i), {Kind::merged_update, round.step, round.part}, bytes_of(round.gradient), comm::Purpose::state);
    messenger_.send(static_cast<int>(i), {Kind::round_result, round.step, round.part}, body, comm::Purpose::control);
  }
}

bool IslandMembership::has_forwarded_round(int64_t step, int32_t part) {
  return std::any_of(forwarded_.begin(), forwarded_.end(),
                     [&](const ForwardedRound& round) { return round.step == step && round.part == part; });
}

at::Tensor IslandMembership::take_forwarded_round(int64_t step, int32_t part, int64_t elements) {
  const auto found = std::find_if(forwarded_.begin(), forwarded_.end(),
                                  [&](const ForwardedRound& round) { return round.step == step && round.part == part; });
  CAIRN_CHECK(found != forwarded_.end(), "round of step {} was not forwarded", step);
  const ForwardedRound round = std::move(*found);
  forwarded_.erase(found);
  quorum_.set_members(round.members, known_[static_cast<size_t>(sponsor_)].status.epoch);
  return round.defined ? receive_row(sponsor_, {Kind::merged_update, step, part}, elements) : at::Tensor();
}

}  // namespace cairn::sync
