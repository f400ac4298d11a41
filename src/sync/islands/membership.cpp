// How remote islands become members of a run.
//
// Founding. Islands that wait send each other their status: phase, step, checksum of the state. When `founders` of them wait, the lowest
// one founds the run: it decides who takes part and whose state is used (that of the furthest island) and sends this to all. Islands whose
// state differs receive it from its owner. Everyone waits until it is connected to every other founder.
//
// Joining a run in progress. A newcomer asks an island that trains, its sponsor:
//
//   newcomer                      sponsor
//      | --- join ----------------> |   repeated until it is answered
//      | <-- state, state_sent ---- |   anchor and momentum after some step
//      | --- ready ---------------> |   the sponsor proposes the newcomer to the quorum (quorum.h)
//      | <-- merged_update,         |   the result of every round since then; the newcomer applies the outer steps itself
//      |     round_result --------- |   and starts when a result says that it is a member
//
// If the sponsor is lost, the newcomer starts over with another one. While it waits it asks for the sponsor's status now and then. The rank
// that trains answers, so an island whose process lives but stands still is noticed: the newcomer fails after `answer_limit` and names it.
#include "sync/islands/membership.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/bridge/bridge.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

using Kind = MessageTag::Kind;
using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kAskAgainAfter = std::chrono::seconds(1);
constexpr auto kSayEvery = std::chrono::seconds(10);
constexpr auto kAskStatusEvery = std::chrono::seconds(10);
constexpr auto kReachLimit = std::chrono::seconds(60);     // for founders to connect to each other
constexpr auto kFoundersLimit = std::chrono::minutes(30);  // for enough islands to arrive

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// False: the bytes have another length.
template <typename T>
bool read_into(T& value, std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

std::span<const std::byte> bytes_of(const at::Tensor& row) {
  return std::as_bytes(std::span(row.const_data_ptr<float>(), static_cast<size_t>(row.numel())));
}

uint64_t checksum_of(const IslandMembership::State& state) {
  uint64_t sum = 0;
  for (const auto* rows : {&state.anchors, &state.momenta})
    for (const at::Tensor& row : *rows) sum = sum * 0x9e3779b97f4a7c15 + base::checksum(bytes_of(row));
  return sum;
}

// The decision of the island that founds the run. A byte per island follows.
struct Founding {
  int64_t step = 0;
  int32_t source = 0;  // the island whose state is used
  int32_t spare = 0;
};
constexpr auto kMember = std::byte{1}, kNeedsState = std::byte{2};  // bits of an island's byte

struct ForwardedHeader {
  int64_t now = 0;
  int64_t defined = 0;
};

}  // namespace

IslandMembership::IslandMembership(Parts parts)
    : bridge_(parts.bridge),
      messenger_(parts.messenger),
      quorum_(parts.quorum),
      log_(parts.log),
      founders_(parts.founders),
      outer_step_(std::move(parts.outer_step)),
      answer_limit_(parts.answer_limit),
      statuses_(static_cast<size_t>(parts.messenger.size())),
      status_sent_to_(statuses_.size()),
      state_step_from_(statuses_.size(), -1),
      join_requests_(statuses_.size()),
      sponsored_(statuses_.size()) {
  quorum_.set_members(IslandSet(statuses_.size()));
  const auto place = [](int island) { return static_cast<size_t>(island); };
  messenger_.on_message(Kind::status, [this, place](int from, const MessageTag&, std::span<const std::byte> body) {
    Status said;
    if (!read_into(said, body)) return;
    statuses_[place(from)] = said;
    if (said.asks != 0) messenger_.send(from, {Kind::status, 0, 0}, bytes_of(mine_), comm::Purpose::control);
  });
  messenger_.on_message(Kind::join, [this, place](int from, const MessageTag&, std::span<const std::byte>) {
    if (mine_.phase == Phase::works && !quorum_.members()[place(from)] && !sponsored_[place(from)]) join_requests_[place(from)] = true;
  });
  messenger_.on_message(Kind::state_sent, [this, place](int from, const MessageTag& tag, std::span<const std::byte>) {
    state_step_from_[place(from)] = tag.step;
  });
  messenger_.on_message(Kind::ready, [this, place](int from, const MessageTag&, std::span<const std::byte>) {
    if (sponsored_[place(from)] && !quorum_.members()[place(from)]) quorum_.propose(from);
  });
  messenger_.on_message(Kind::round_result, [this, place](int from, const MessageTag& tag, std::span<const std::byte> body) {
    ForwardedHeader head;
    if (from != sponsor_ || body.size() != sizeof head + statuses_.size()) return;
    std::memcpy(&head, body.data(), sizeof head);
    ForwardedRound round{tag.step, tag.part, head.now, head.defined != 0, IslandSet(statuses_.size())};
    for (size_t i = 0; i < statuses_.size(); ++i) round.members[i] = body[sizeof head + i] != std::byte{0};
    forwarded_.push_back(std::move(round));
  });
}

void IslandMembership::poll() {
  for (int island = 0; island < messenger_.size(); ++island) {
    if (island == messenger_.me()) continue;
    const auto i = static_cast<size_t>(island);
    const uint64_t incarnation = bridge_.incarnation(island);
    if (messenger_.lost(island) && !quorum_.members()[i]) {
      statuses_[i] = {};
      join_requests_[i] = sponsored_[i] = false;
      if (incarnation == 0) continue;
      messenger_.readmit(island);
    }
    if (messenger_.lost(island) || status_sent_to_[i] == incarnation) continue;
    status_sent_to_[i] = incarnation;
    Status said = mine_;
    said.asks = 1;
    messenger_.send(island, {Kind::status, 0, 0}, bytes_of(said), comm::Purpose::control);
  }
  messenger_.pump();
}

void IslandMembership::set_status(Phase phase, int64_t step, uint64_t checksum) {
  mine_ = {phase, 0, step, checksum};
  std::fill(status_sent_to_.begin(), status_sent_to_.end(), 0);
  poll();
}

bool IslandMembership::wait_briefly(const std::function<bool()>& done) {
  const bool so = messenger_.wait(done, messenger_.now() + std::min<Nanoseconds>(kAskAgainAfter, answer_limit_));
  tick_();
  return so;
}

// The same for something that `island` shall send. Throws if it has sent nothing at all for answer_limit_.
bool IslandMembership::wait_for_island(int island, const std::function<bool()>& done) {
  if (wait_briefly(done)) return true;
  const Nanoseconds now = messenger_.now();
  if (now - status_asked_ > kAskStatusEvery) {
    status_asked_ = now;
    Status said = mine_;
    said.asks = 1;
    messenger_.send(island, {Kind::status, 0, 0}, bytes_of(said), comm::Purpose::control);
  }
  if (now - std::max(messenger_.heard_at(island), waiting_since_) > answer_limit_)
    throw Error(
        Error::Kind::lost_peer,
        fmt::format("island {} has sent nothing for {:.0f} s, though it can be reached: it stands still. Stop it, then start this one "
                    "again",
                    island, base::seconds(answer_limit_)));
  return false;
}

IslandExchange::StartPoint IslandMembership::join_or_found(int64_t steps_done, State& state, std::function<void()> tick) {
  tick_ = std::move(tick);
  set_status(Phase::waits, steps_done, checksum_of(state));
  const Nanoseconds begun = messenger_.now();
  Nanoseconds said = begun, ticked = begun;
  IslandExchange::StartPoint start_point{steps_done};
  while (true) {
    poll();
    if (const std::string why = bridge_.refusal(); !why.empty()) base::fail_input("the other islands refuse this one: {}", why);
    if (const int founder = founding_island(); founder >= 0)
      return found_run(messenger_.take(founder, {Kind::found, 0, 0}), founder, state);
    int waiting = 1, lowest = messenger_.me();
    for (int island = 0; island < messenger_.size(); ++island) {
      if (island == messenger_.me() || !is_present(island)) continue;
      const Phase phase = statuses_[static_cast<size_t>(island)].phase;
      if (phase == Phase::works && join(island, state, start_point)) return start_point;
      if (phase != Phase::waits) continue;
      ++waiting;
      lowest = std::min(lowest, island);
    }
    if (waiting >= founders_ && lowest == messenger_.me()) return found_run(decide(), messenger_.me(), state);
    const Nanoseconds now = messenger_.now();
    if (now - begun > kFoundersLimit)
      throw Error(Error::Kind::lost_peer,
                  fmt::format("{} of {} islands arrived within {:.0f} minutes: start the others, or ask for fewer (--founders)", waiting,
                              founders_, base::seconds(kFoundersLimit) / 60));
    if (now - said > kSayEvery) {
      said = now;
      log_.info("waiting for islands: {} of {} are here", waiting, founders_);
    }
    if (now - ticked > kAskAgainAfter) {
      ticked = now;
      tick_();
    }
    messenger_.wait([] { return false; }, now + std::chrono::milliseconds(50));
  }
}

int IslandMembership::founding_island() const {
  for (int island = 0; island < messenger_.size(); ++island)
    if (island != messenger_.me() && is_present(island) && messenger_.find(island, {Kind::found, 0, 0})) return island;
  return -1;
}

std::vector<std::byte> IslandMembership::decide() {
  IslandSet members(statuses_.size());
  Founding founding{mine_.step, messenger_.me()};
  Status best = mine_;
  statuses_[static_cast<size_t>(messenger_.me())] = mine_;
  for (int island = 0; island < messenger_.size(); ++island) {
    const Status& theirs = statuses_[static_cast<size_t>(island)];
    members[static_cast<size_t>(island)] = is_present(island) && theirs.phase == Phase::waits;
    if (!members[static_cast<size_t>(island)] || theirs.step <= best.step) continue;
    best = theirs;
    founding = {theirs.step, island};
  }
  std::vector<std::byte> decided = bytes_of(founding);
  for (size_t i = 0; i < statuses_.size(); ++i) {
    const bool needs_state = members[i] && (statuses_[i].step != best.step || statuses_[i].checksum != best.checksum);
    decided.push_back((members[i] ? kMember : std::byte{0}) | (needs_state ? kNeedsState : std::byte{0}));
  }
  for (int island = 0; island < messenger_.size(); ++island)
    if (island != messenger_.me() && members[static_cast<size_t>(island)])
      messenger_.send(island, {Kind::found, 0, 0}, decided, comm::Purpose::control);
  return decided;
}

IslandExchange::StartPoint IslandMembership::found_run(const std::vector<std::byte>& decided, int from, State& state) {
  Founding founding;
  const size_t islands = statuses_.size();
  const auto me = static_cast<size_t>(messenger_.me());
  if (decided.size() != sizeof founding + islands)
    throw Error(Error::Kind::lost_peer, fmt::format("island {} sent a malformed founding message", from));
  std::memcpy(&founding, decided.data(), sizeof founding);
  IslandSet members(islands), needs_state(islands);
  for (size_t i = 0; i < islands; ++i) {
    members[i] = (decided[sizeof founding + i] & kMember) != std::byte{0};
    needs_state[i] = (decided[sizeof founding + i] & kNeedsState) != std::byte{0};
  }
  if (!members[me] || founding.source < 0 || founding.source >= messenger_.size())
    throw Error(Error::Kind::lost_peer, fmt::format("island {} founded the run without this one: start it again, it will join", from));
  wait_until_connected(members);
  quorum_.set_members(members);
  if (founding.source == messenger_.me()) {
    for (size_t i = 0; i < islands; ++i)
      if (needs_state[i]) send_state(static_cast<int>(i), state, founding.step);
  } else if (needs_state[me]) {
    if (!receive_state(founding.source, state))
      throw Error(Error::Kind::lost_peer,
                  fmt::format("island {} was lost before it had sent its model: start this one again", founding.source));
  }
  set_status(Phase::works, founding.step, 0);
  log_.info("{} islands train together from step {} on", std::count(members.begin(), members.end(), true), founding.step + 1);
  return {founding.step, needs_state[me], false};
}

// The founding island is connected to all others, but they may not be connected to each other yet. They would count as lost, and rounds
// fail while two members do not hear each other.
void IslandMembership::wait_until_connected(const IslandSet& members) {
  const Nanoseconds begun = messenger_.now();
  while (true) {
    poll();
    int missing = -1;
    for (int island = 0; island < messenger_.size() && missing < 0; ++island)
      if (island != messenger_.me() && members[static_cast<size_t>(island)] && messenger_.lost(island)) missing = island;
    if (missing < 0) return;
    if (messenger_.now() - begun > kReachLimit)
      throw Error(Error::Kind::lost_peer,
                  fmt::format("island {} cannot be reached from here within {:.0f} s, though others have: every island must be able to "
                              "connect to every other (--listen with an address that they can reach)",
                              missing, base::seconds(kReachLimit)));
    wait_briefly([&] { return bridge_.incarnation(missing) != 0; });
  }
}

void IslandMembership::send_state(int island, const State& state, int64_t now) {
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    messenger_.send(island, {Kind::state, now, static_cast<int32_t>(2 * f)}, bytes_of(state.anchors[f]), comm::Purpose::state);
    messenger_.send(island, {Kind::state, now, static_cast<int32_t>(2 * f + 1)}, bytes_of(state.momenta[f]), comm::Purpose::state);
  }
  messenger_.send(island, {Kind::state_sent, now, 0}, {}, comm::Purpose::control);  // arrives last: the state is complete then
}

at::Tensor IslandMembership::receive_row(int from, const MessageTag& tag, int64_t elements) {
  const std::vector<std::byte>* body = messenger_.find(from, tag);
  if (!body || static_cast<int64_t>(body->size()) != elements * 4)
    throw Error(Error::Kind::lost_peer, fmt::format("island {} sent a model of another shape: all islands need the same recipe", from));
  at::Tensor row = at::empty({elements}, at::kFloat);
  std::memcpy(row.mutable_data_ptr<float>(), body->data(), body->size());
  messenger_.take(from, tag);
  return row;
}

// False: the sender was lost before all of it arrived.
bool IslandMembership::receive_state(int from, State& state) {
  int64_t& step = state_step_from_[static_cast<size_t>(from)];
  waiting_since_ = messenger_.now();
  while (step < 0) {
    if (messenger_.lost(from)) return false;
    wait_for_island(from, [&] { return step >= 0; });
  }
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    state.anchors[f] = receive_row(from, {Kind::state, step, static_cast<int32_t>(2 * f)}, state.anchors[f].numel());
    state.momenta[f] = receive_row(from, {Kind::state, step, static_cast<int32_t>(2 * f + 1)}, state.momenta[f].numel());
  }
  step = -1;
  return true;
}

// False: the sponsor was lost, or this island is a founder: another founder started to train before the founding message arrived here.
bool IslandMembership::join(int sponsor, State& state, IslandExchange::StartPoint& start_point) {
  log_.info("the other islands are training: joining them through island {}", sponsor);
  sponsor_ = sponsor;
  forwarded_.clear();
  waiting_since_ = messenger_.now();
  const auto me = static_cast<size_t>(messenger_.me());
  while (state_step_from_[static_cast<size_t>(sponsor)] < 0) {
    if (messenger_.lost(sponsor) || founding_island() >= 0) return false;
    // Repeated: the sponsor ignores it until it has noticed this incarnation of the island.
    messenger_.send(sponsor, {Kind::join, 0, 0}, {}, comm::Purpose::control);
    wait_for_island(sponsor, [&] { return state_step_from_[static_cast<size_t>(sponsor)] >= 0 || founding_island() >= 0; });
    poll();
  }
  start_point.step = state_step_from_[static_cast<size_t>(sponsor)];
  if (!receive_state(sponsor, state)) return false;
  messenger_.send(sponsor, {Kind::ready, 0, 0}, {}, comm::Purpose::control);
  while (true) {
    if (!wait_for_island(sponsor, [&] { return !forwarded_.empty(); })) {
      poll();
      if (messenger_.lost(sponsor)) return false;
      continue;
    }
    const ForwardedRound round = forwarded_.front();
    const size_t f = static_cast<size_t>(round.part) % state.anchors.size();
    const at::Tensor gradient = take_forwarded_round(round.step, round.part, state.anchors[f].numel());
    if (gradient.defined()) outer_step_(state.anchors[f], state.momenta[f], gradient, round.step);
    start_point.step = round.now;
    if (round.members[me]) break;
  }
  start_point.state_replaced = start_point.joined = true;
  set_status(Phase::works, start_point.step, 0);
  log_.info("joined the other islands: {} train together from step {} on", quorum_.count(), start_point.step + 1);
  return true;
}

bool IslandMembership::has_join_requests() const {
  for (size_t i = 0; i < join_requests_.size(); ++i)
    if (join_requests_[i] && !messenger_.lost(static_cast<int>(i))) return true;
  return false;
}

void IslandMembership::send_state_to_joiners(int64_t now, const State& state) {
  for (size_t i = 0; i < join_requests_.size(); ++i) {
    if (!join_requests_[i]) continue;
    join_requests_[i] = false;
    sponsored_[i] = true;
    log_.info("island {} joins with the state of step {}", i, now);
    send_state(static_cast<int>(i), state, now);
  }
}

void IslandMembership::forward_round(const IslandSet& members, int64_t step, int32_t part, int64_t now, const at::Tensor& gradient) {
  std::vector<std::byte> body = bytes_of(ForwardedHeader{now, gradient.defined() ? 1 : 0});
  for (const bool member : quorum_.members()) body.push_back(std::byte{member});
  for (size_t i = 0; i < sponsored_.size(); ++i) {
    if (!sponsored_[i] || members[i]) continue;
    if (gradient.defined())
      messenger_.send(static_cast<int>(i), {Kind::merged_update, step, part}, bytes_of(gradient), comm::Purpose::state);
    messenger_.send(static_cast<int>(i), {Kind::round_result, step, part}, body, comm::Purpose::control);
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
  quorum_.set_members(round.members);
  return round.defined ? receive_row(sponsor_, {Kind::merged_update, step, part}, elements) : at::Tensor();
}

}  // namespace cairn::sync
