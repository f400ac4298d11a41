// How remote islands become members of a run, and come back to it.
//
// Islands tell each other their status: phase, step, checksum of the state. One that is not a member waits, and enters in one of three
// ways:
//
//   founding   Nobody trains and enough islands wait (`founders`). The leader of the decision log (decision_log.h) writes into the log who
//   takes part
//              and whose state is used: that of the furthest island of the latest lineage. Islands with another state receive it.
//   joining    Others train. The newcomer asks one of them, its sponsor:
//
//                newcomer                      sponsor
//                   | --- join ----------------> |   repeated until it is answered
//                   | <-- state, state_sent ---- |   anchor and momentum after some step
//                   | --- ready ---------------> |   the sponsor proposes the newcomer in its votes
//                   | <-- merged_update,         |   the result of every round since then; the newcomer applies the outer steps itself
//                   |     round_result --------- |   and starts when a result says that it is a member
//
//   at the end An island that has ended waits for the others. One that comes now gets the final state.
//
// Where rounds are among a few islands (peers.h) no round decides who joins: membership_peers.cpp.
//
// If the sponsor is lost the newcomer starts over, with a new incarnation. An island that the others went on without (a decision in the log
// says so, or another island does) comes back in the same way: it gives up its own steps since the last round.
#include "sync/islands/membership.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "sync/islands/membership_bytes.h"

namespace cairn::sync {
namespace {

using Kind = MessageTag::Kind;
using Nanoseconds = std::chrono::nanoseconds;
using StartPoint = IslandExchange::StartPoint;
using membership::bytes_of;
using membership::ForwardedHeader;
using membership::kAskAgainAfter;
using membership::read_into;

constexpr auto kSayEvery = std::chrono::seconds(10);
constexpr auto kReachLimit = std::chrono::seconds(10);  // for founders to connect to each other
constexpr auto kLeaveLimit = std::chrono::seconds(30);  // for others to end

uint64_t checksum_of(const IslandMembership::State& state) {
  uint64_t sum = 0;
  for (const auto* rows : {&state.anchors, &state.momenta})
    for (const at::Tensor& row : *rows) sum = sum * 0x9e3779b97f4a7c15 + base::checksum(bytes_of(row));
  if (state.numbers.defined()) sum = sum * 0x9e3779b97f4a7c15 + base::checksum(membership::bytes_of_numbers(state.numbers));
  return sum;
}

}  // namespace

IslandMembership::IslandMembership(Parts parts)
    : messenger_(parts.messenger),
      quorum_(parts.quorum),
      decisions_(parts.quorum.decisions()),
      log_(parts.log),
      founders_(parts.founders),
      steps_(parts.steps),
      outer_step_(std::move(parts.outer_step)),
      any_length_(parts.any_length),
      peer_round_steps_(parts.peer_round_steps),
      founders_limit_(parts.founders_limit),
      return_limit_(parts.return_limit),
      answer_limit_(parts.answer_limit),
      known_(static_cast<size_t>(parts.messenger.size())),
      said_to_(known_.size()),
      state_step_{std::vector<int64_t>(known_.size(), -1), std::vector<int64_t>(known_.size(), -1)},
      state_is_final_(known_.size()),
      ready_(known_.size()),
      unanswered_since_(known_.size(), kLongAgo),
      join_requests_(known_.size()),
      sponsored_(known_.size()),
      forwards_sent_(known_.size()) {
  listen();
}

void IslandMembership::listen() {
  using Arrived = IslandMessenger::Arrived;
  const auto place = [](const Arrived& message) { return static_cast<size_t>(message.from); };
  messenger_.on_message(Kind::status, [this, place](const Arrived& message) {
    Status said;
    if (!read_into(said, message.body)) return;
    known_[place(message)] = {said, message.incarnation};
    decisions_.set_works(message.from, said.phase == Phase::works);
    if (said.asks != 0) say(message.from, false);
    // Another island that goes on with a majority does not count this one as a member, though it knows by which entry this one became one.
    const bool knows = decisions_.member_since() != 0 && said.applied >= decisions_.member_since() && said.epoch >= decisions_.epoch();
    if (mine_.phase == Phase::works && said.phase == Phase::works && said.has_quorum != 0 && knows &&
        said.member != messenger_.incarnation(messenger_.me()))
      decisions_.set_removed();
  });
  messenger_.on_message(Kind::join, [this, place](const Arrived& message) {
    const bool serves =
        mine_.phase == Phase::ended || (mine_.phase == Phase::works && quorum_.members()[place(message)] != message.incarnation);
    if (serves && sponsored_[place(message)] != message.incarnation) join_requests_[place(message)] = message.incarnation;
  });
  messenger_.on_message(Kind::state_sent, [this, place](const Arrived& message) {
    state_step_[message.tag.part == static_cast<int32_t>(StateFor::joiner) ? 1 : 0][place(message)] = message.tag.step;
    state_is_final_[place(message)] = known_[place(message)].status.phase == Phase::ended;
  });
  messenger_.on_message(Kind::ready, [this, place](const Arrived& message) {
    ready_[place(message)] = message.incarnation;
    if (peer_round_steps_ > 0) return;
    if (sponsored_[place(message)] == message.incarnation && quorum_.members()[place(message)] != message.incarnation)
      quorum_.propose(message.from, message.incarnation);
  });
  messenger_.on_message(Kind::round_result, [this](const Arrived& message) {
    ForwardedHeader head;
    const size_t fixed = sizeof head + known_.size() * sizeof(uint64_t);
    if (message.from != sponsor_ || message.incarnation != sponsor_incarnation_ || message.body.size() < fixed ||
        (message.body.size() - fixed) % sizeof(double) != 0)
      return;
    std::memcpy(&head, message.body.data(), sizeof head);
    if (head.number != ++forwards_received_) misses_round_ = true;
    ForwardedRound round{message.tag.step, message.tag.part, head.now, head.defined != 0, head.applied, Incarnations(known_.size())};
    std::memcpy(round.members.data(), message.body.data() + sizeof head, known_.size() * sizeof(uint64_t));
    if (const std::span numbers = message.body.subspan(fixed); !numbers.empty()) {
      round.numbers = at::empty({static_cast<int64_t>(numbers.size() / sizeof(double))}, at::kDouble);
      std::memcpy(round.numbers.mutable_data_ptr<double>(), numbers.data(), numbers.size());
    }
    forwarded_.push_back(std::move(round));
  });
}

const IslandMembership::Status* IslandMembership::status_of(int island) const {
  const Known& known = known_[static_cast<size_t>(island)];
  if (known.incarnation == 0 || is_gone(island, known.incarnation) || stands_still(island)) return nullptr;
  return &known.status;
}

bool IslandMembership::is_gone(int island, uint64_t incarnation) const {
  return messenger_.lost(island) || messenger_.incarnation(island) != incarnation;
}

// The rank that trains answers, so an island whose process lives but does nothing is noticed.
bool IslandMembership::stands_still(int island) const {
  return messenger_.heard_at(island) > Nanoseconds{0} && messenger_.now() - messenger_.heard_at(island) > answer_limit_;
}

bool IslandMembership::is_sponsor_gone() const {
  return sponsor_ < 0 || misses_round_ || is_gone(sponsor_, sponsor_incarnation_) || stands_still(sponsor_);
}

void IslandMembership::say(int island, bool asks) {
  Status said = mine_;
  said.asks = asks ? 1 : 0;
  said.has_quorum = decisions_.has_quorum() ? 1 : 0;
  said.applied = decisions_.applied();
  said.forwards = forwards_sent_[static_cast<size_t>(island)];
  said.entered = quorum_.members()[static_cast<size_t>(island)];
  said.member = decisions_.members()[static_cast<size_t>(island)];
  messenger_.send(island, {Kind::status, 0, 0}, bytes_of(said), comm::Purpose::control);
}

void IslandMembership::ask_all() {
  const Nanoseconds now = messenger_.now();
  if (now - asked_ < kAskAgainAfter) return;
  asked_ = now;
  for (int island = 0; island < messenger_.size(); ++island) {
    if (island == messenger_.me() || messenger_.lost(island)) continue;
    Nanoseconds& since = unanswered_since_[static_cast<size_t>(island)];
    if (messenger_.heard_at(island) >= since) since = now;
    say(island, true);
  }
}

void IslandMembership::ask_whether_removed() { ask_all(); }

void IslandMembership::poll() {
  for (int island = 0; island < messenger_.size(); ++island) {
    const auto i = static_cast<size_t>(island);
    if (island == messenger_.me() || messenger_.lost(island)) continue;
    const uint64_t incarnation = messenger_.incarnation(island);
    if (std::exchange(said_to_[i], incarnation) != incarnation) say(island, true);
  }
  messenger_.pump();
}

void IslandMembership::set_status(Phase phase, int64_t step, uint64_t checksum, bool apart) {
  mine_ = {.phase = phase, .step = step, .checksum = checksum, .epoch = mine_.epoch, .apart = apart ? 1 : 0};
  decisions_.set_works(messenger_.me(), phase == Phase::works);
  std::fill(said_to_.begin(), said_to_.end(), 0);
  poll();
}

// Waits for at most a twentieth of a second.
bool IslandMembership::wait_briefly(const std::function<bool()>& done) {
  const bool so = messenger_.wait(done, messenger_.now() + std::chrono::milliseconds(50));
  if (messenger_.now() - ticked_ > kAskAgainAfter) {
    ticked_ = messenger_.now();
    if (!tick_()) ended_by_tick_ = true;
  }
  return so;
}

StartPoint IslandMembership::enter_again(int64_t steps_done, State& state, const std::function<bool()>& tick) {
  messenger_.renew();
  log_.info("the other islands went on without this one: it takes up their state");
  return enter_run(steps_done, state, tick, /*again=*/true);
}

StartPoint IslandMembership::enter(int64_t steps_done, State& state, const std::function<bool()>& tick) {
  return enter_run(steps_done, state, tick, /*again=*/false);
}

StartPoint IslandMembership::enter_run(int64_t steps_done, State& state, const std::function<bool()>& tick, bool again) {
  tick_ = tick;
  ended_by_tick_ = false;
  mine_.epoch = state.epoch;
  quorum_.set_members(Incarnations(known_.size()), 0);
  decisions_.set_entering();
  const Nanoseconds begun = messenger_.now();
  Nanoseconds said = begun;
  set_status(Phase::waits, steps_done, checksum_of(state), state.apart);
  while (true) {
    poll();
    if (const std::string why = messenger_.link().refusal(); !why.empty()) base::fail_input("the other islands refuse this one: {}", why);
    if (auto start_point = try_to_enter(state, again)) return *start_point;
    if (ended_by_tick_) return {.step = steps_done, .ending = RoundEnding::stopped};
    const Nanoseconds now = messenger_.now();
    if (now - begun > (again ? return_limit_ : founders_limit_)) {
      if (again) return {.step = steps_done, .ending = RoundEnding::minority};
      throw Error(Error::Kind::lost_peer,
                  fmt::format("{} of {} islands arrived within {:.0f} minutes: start the others, or ask for fewer (--founders){}",
                              count_waiting(), founders_, base::seconds(founders_limit_) / 60, describe_missing()));
    }
    if (now - said > kSayEvery) {
      said = now;
      log_.info("waiting for islands: {} of {} are here{}", count_waiting(), needed(again), describe_missing());
    }
    wait_briefly([] { return false; });
  }
}

int IslandMembership::needed(bool again) const { return again ? static_cast<int>(decisions_.log_members().size() / 2 + 1) : founders_; }

int IslandMembership::count_waiting() const {
  int waiting = 1;
  for (int island = 0; island < messenger_.size(); ++island)
    if (const Status* status = island == messenger_.me() ? nullptr : status_of(island)) waiting += status->phase == Phase::waits;
  return waiting;
}

std::string IslandMembership::describe_missing() const {
  std::vector<int> missing;
  std::string still;
  for (int island = 0; island < messenger_.size(); ++island) {
    if (island == messenger_.me()) continue;
    if (messenger_.lost(island))
      missing.push_back(island);
    else if (stands_still(island))
      still += fmt::format("; island {} has sent nothing for {:.0f} s, though it can be reached: it stands still", island,
                           base::seconds(messenger_.now() - messenger_.heard_at(island)));
  }
  return (missing.empty() ? "" : fmt::format("; not here: {}", fmt::join(missing, ", "))) + still;
}

std::optional<StartPoint> IslandMembership::try_to_enter(State& state, bool again) {
  if (is_founder()) {
    const Founding founding = *decisions_.founding();
    entered_epoch_ = founding.epoch;
    if (auto start_point = found_run(founding, state)) return start_point;
    return start_over();
  }
  ask_all();
  bool somebody_works = false;
  for (int island = 0; island < messenger_.size(); ++island) {
    const Status* status = island == messenger_.me() ? nullptr : status_of(island);
    if (!status) continue;
    somebody_works = somebody_works || status->phase == Phase::works;
    if ((status->phase != Phase::works || status->has_quorum == 0) && status->phase != Phase::ended) continue;
    if (auto start_point = join(island, state)) return start_point;
    if (ended_by_tick_ || (is_founder() && !took_state_)) return std::nullopt;
    return start_over();
  }
  if (!somebody_works && count_waiting() >= needed(again)) found();
  return std::nullopt;
}

// Whether the log says that this island founds the run with others, and it has not done so yet.
bool IslandMembership::is_founder() const {
  const auto& founding = decisions_.founding();
  return founding && founding->epoch > entered_epoch_ &&
         founding->members[static_cast<size_t>(messenger_.me())] == messenger_.incarnation(messenger_.me());
}

// After a sponsor or a founder was lost on the way.
std::nullopt_t IslandMembership::start_over() {
  messenger_.renew();
  decisions_.set_entering();
  for (auto& steps : state_step_) std::fill(steps.begin(), steps.end(), -1);
  forwarded_.clear();
  sponsor_ = -1;
  std::fill(said_to_.begin(), said_to_.end(), 0);
  return std::nullopt;
}

// Enough islands wait: the leader founds the run.
void IslandMembership::found() {
  IslandSet waiting(known_.size());
  for (int island = 0; island < messenger_.size(); ++island) {
    const Status* status = island == messenger_.me() ? &mine_ : status_of(island);
    waiting[static_cast<size_t>(island)] = status && status->phase == Phase::waits;
  }
  decisions_.set_votes(true);  // no island that can be reached has trained in this run, or all start again
  if (!decisions_.founding()) decisions_.set_first_members(waiting);
  if (decisions_.leads()) decisions_.propose({.kind = DecisionEntry::Kind::founding, .founding = make_founding(waiting)});
}

Founding IslandMembership::make_founding(const IslandSet& waiting) const {
  const auto status = [&](size_t i) { return static_cast<int>(i) == messenger_.me() ? mine_ : known_[i].status; };
  const auto rank = [](const Status& one) { return std::tuple(one.apart == 0, one.epoch, one.step); };
  Founding founding{.epoch = decisions_.epoch(), .members = Incarnations(known_.size()), .needs_state = IslandSet(known_.size())};
  int source = -1;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (!waiting[i]) continue;
    founding.members[i] = messenger_.incarnation(static_cast<int>(i));
    founding.epoch = std::max(founding.epoch, status(i).epoch);
    if (source < 0 || rank(status(i)) > rank(status(static_cast<size_t>(source)))) source = static_cast<int>(i);
  }
  const Status best = status(static_cast<size_t>(source));
  ++founding.epoch;
  founding.source = source;
  founding.step = best.step;
  // Where islands average among a few, each has a model of its own. Only those that are behind take another one's; all begin with one
  // model.
  const bool one_model = peer_round_steps_ == 0 || best.step == 0;
  for (size_t i = 0; i < known_.size(); ++i)
    founding.needs_state[i] = waiting[i] && (status(i).step != best.step || (one_model && status(i).checksum != best.checksum));
  return founding;
}

// Nothing: the island whose state is used was lost.
std::optional<StartPoint> IslandMembership::found_run(const Founding& founding, State& state) {
  const auto me = static_cast<size_t>(messenger_.me());
  const auto source = static_cast<size_t>(founding.source);
  decisions_.set_votes(true);
  quorum_.set_members(founding.members, founding.epoch);
  wait_until_connected(founding.members);
  if (source == me) {
    for (size_t i = 0; i < known_.size(); ++i)  // a founder that has started again joins later, with a later state
      if (founding.needs_state[i] && messenger_.incarnation(static_cast<int>(i)) == founding.members[i])
        send_state(static_cast<int>(i), StateFor::founder, state, founding.step);
  } else if (founding.needs_state[me] && !receive_state(founding.source, founding.members[source], StateFor::founder, state)) {
    return std::nullopt;
  }
  mine_.epoch = founding.epoch;
  set_status(Phase::works, founding.step, 0, false);
  log_.info("{} islands train together from step {} on", quorum_.count(), founding.step + 1);
  return StartPoint{.step = founding.step, .state_replaced = founding.needs_state[me], .epoch = founding.epoch};
}

// The leader is connected to all others, but they may not be connected to each other yet.
void IslandMembership::wait_until_connected(const Incarnations& members) {
  const Nanoseconds begun = messenger_.now();
  const auto connected = [&] {
    for (int island = 0; island < messenger_.size(); ++island)
      if (island != messenger_.me() && members[static_cast<size_t>(island)] != 0 && messenger_.lost(island)) return false;
    return true;
  };
  const Nanoseconds limit = std::min<Nanoseconds>(kReachLimit, quorum_.timeout());
  while (!ended_by_tick_ && !wait_briefly(connected) && messenger_.now() - begun < limit) poll();
}

void IslandMembership::leave(int64_t step, const State& state, const std::function<bool()>& tick) {
  tick_ = tick;
  ended_by_tick_ = false;
  set_status(Phase::ended, step, checksum_of(state), false);
  const Nanoseconds begun = messenger_.now();
  while (!ended_by_tick_ && messenger_.now() - begun < kLeaveLimit) {
    poll();
    ask_all();
    send_state_to_joiners(step, state);
    bool all_ended = true;
    for (int island = 0; island < messenger_.size(); ++island) {
      const Status* status = island == messenger_.me() ? nullptr : status_of(island);
      if (status && status->phase != Phase::ended) all_ended = false;
    }
    if (all_ended) return;
    wait_briefly([] { return false; });
  }
}

}  // namespace cairn::sync
