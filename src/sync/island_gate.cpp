#include "sync/island_gate.h"

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
#include "comm/bridge.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

using Kind = Subject::Kind;
using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kAskAgainAfter = std::chrono::seconds(1);
constexpr auto kSayEvery = std::chrono::seconds(10);
constexpr auto kReachLimit = std::chrono::seconds(60);     // for islands that found a run to meet each other
constexpr auto kFoundersLimit = std::chrono::minutes(30);  // for enough islands to come

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// False where it is of another length.
template <typename T>
bool read_into(T& value, std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

std::span<const std::byte> bytes_of(const at::Tensor& row) {
  return std::as_bytes(std::span(row.const_data_ptr<float>(), static_cast<size_t>(row.numel())));
}

uint64_t checksum_of(const IslandGate::State& state) {
  uint64_t sum = 0;
  for (const auto* rows : {&state.anchors, &state.momenta})
    for (const at::Tensor& row : *rows) sum = sum * 0x9e3779b97f4a7c15 + base::checksum(bytes_of(row));
  return sum;
}

// What the lowest of those who wait decides.
struct Founding {
  int64_t step = 0;
  int32_t source = 0;  // whose model it is
  int32_t spare = 0;
};
constexpr auto kMember = std::byte{1}, kNeedy = std::byte{2};  // for each island, after it: whether it takes part, and has another model

struct NewsHead {
  int64_t now = 0;
  int64_t defined = 0;
};

}  // namespace

IslandGate::IslandGate(Parts parts)
    : bridge_(parts.bridge),
      post_(parts.post),
      council_(parts.council),
      log_(parts.log),
      founders_(parts.founders),
      outer_step_(std::move(parts.outer_step)),
      statuses_(static_cast<size_t>(parts.post.size())),
      told_(statuses_.size()),
      welcomed_(statuses_.size(), -1),
      asked_(statuses_.size()),
      sponsored_(statuses_.size()) {
  council_.found(IslandSet(statuses_.size()));
  const auto place = [](int island) { return static_cast<size_t>(island); };
  post_.answer(Kind::status, [this, place](int from, const Subject&, std::span<const std::byte> body) {
    Status said;
    if (!read_into(said, body)) return;
    statuses_[place(from)] = said;
    if (said.asks != 0) post_.send(from, {Kind::status, 0, 0}, bytes_of(mine_), comm::Purpose::control);
  });
  post_.answer(Kind::join, [this, place](int from, const Subject&, std::span<const std::byte>) {
    if (mine_.phase == Phase::works && !council_.members()[place(from)] && !sponsored_[place(from)]) asked_[place(from)] = true;
  });
  post_.answer(Kind::welcome,
               [this, place](int from, const Subject& about, std::span<const std::byte>) { welcomed_[place(from)] = about.step; });
  post_.answer(Kind::ready, [this, place](int from, const Subject&, std::span<const std::byte>) {
    if (sponsored_[place(from)] && !council_.members()[place(from)]) council_.propose(from);
  });
  post_.answer(Kind::news, [this, place](int from, const Subject& about, std::span<const std::byte> body) {
    NewsHead head;
    if (from != sponsor_ || body.size() != sizeof head + statuses_.size()) return;
    std::memcpy(&head, body.data(), sizeof head);
    News news{about.step, about.part, head.now, head.defined != 0, IslandSet(statuses_.size())};
    for (size_t i = 0; i < statuses_.size(); ++i) news.members[i] = body[sizeof head + i] != std::byte{0};
    news_.push_back(std::move(news));
  });
}

void IslandGate::look() {
  for (int island = 0; island < post_.size(); ++island) {
    if (island == post_.me()) continue;
    const auto i = static_cast<size_t>(island);
    const uint64_t life = bridge_.life(island);
    if (post_.lost(island) && !council_.members()[i]) {
      statuses_[i] = {};
      asked_[i] = sponsored_[i] = false;
      if (life == 0) continue;
      post_.renew(island);
    }
    if (post_.lost(island) || told_[i] == life) continue;
    told_[i] = life;
    Status said = mine_;
    said.asks = 1;
    post_.send(island, {Kind::status, 0, 0}, bytes_of(said), comm::Purpose::control);
  }
  post_.pump();
}

void IslandGate::set_status(Phase phase, int64_t step, uint64_t checksum) {
  mine_ = {phase, 0, step, checksum};
  std::fill(told_.begin(), told_.end(), 0);
  look();
}

bool IslandGate::wait_a_while(const std::function<bool()>& done) {
  const bool so = post_.wait(done, post_.now() + kAskAgainAfter);
  tick_();
  return so;
}

IslandExchange::Met IslandGate::enter(int64_t steps_done, State& state, std::function<void()> tick) {
  tick_ = std::move(tick);
  set_status(Phase::waits, steps_done, checksum_of(state));
  const Nanoseconds begun = post_.now();
  Nanoseconds said = begun, ticked = begun;
  IslandExchange::Met met{steps_done};
  while (true) {
    look();
    if (const std::string why = bridge_.refusal(); !why.empty()) base::fail_input("the other islands would not have this one: {}", why);
    if (const int founder = founder_heard(); founder >= 0) return found(post_.take(founder, {Kind::found, 0, 0}), founder, state);
    int waiting = 1, lowest = post_.me();
    for (int island = 0; island < post_.size(); ++island) {
      if (island == post_.me() || !here(island)) continue;
      const Phase phase = statuses_[static_cast<size_t>(island)].phase;
      if (phase == Phase::works && join(island, state, met)) return met;
      if (phase != Phase::waits) continue;
      ++waiting;
      lowest = std::min(lowest, island);
    }
    if (waiting >= founders_ && lowest == post_.me()) return found(decide(), post_.me(), state);
    const Nanoseconds now = post_.now();
    if (now - begun > kFoundersLimit)
      throw Error(Error::Kind::lost_peer,
                  fmt::format("{} of {} islands came within {:.0f} minutes: start the others, or fewer (--founders)", waiting, founders_,
                              base::seconds(kFoundersLimit) / 60));
    if (now - said > kSayEvery) {
      said = now;
      log_.info("waiting for islands: {} of {} are here", waiting, founders_);
    }
    if (now - ticked > kAskAgainAfter) {
      ticked = now;
      tick_();
    }
    post_.wait([] { return false; }, now + std::chrono::milliseconds(50));
  }
}

int IslandGate::founder_heard() const {
  for (int island = 0; island < post_.size(); ++island)
    if (island != post_.me() && here(island) && post_.find(island, {Kind::found, 0, 0})) return island;
  return -1;
}

std::vector<std::byte> IslandGate::decide() {
  IslandSet members(statuses_.size());
  Founding founding{mine_.step, post_.me()};
  Status best = mine_;
  statuses_[static_cast<size_t>(post_.me())] = mine_;
  for (int island = 0; island < post_.size(); ++island) {
    const Status& theirs = statuses_[static_cast<size_t>(island)];
    members[static_cast<size_t>(island)] = here(island) && theirs.phase == Phase::waits;
    if (!members[static_cast<size_t>(island)] || theirs.step <= best.step) continue;
    best = theirs;
    founding = {theirs.step, island};
  }
  std::vector<std::byte> decided = bytes_of(founding);
  for (size_t i = 0; i < statuses_.size(); ++i) {
    const bool needy = members[i] && (statuses_[i].step != best.step || statuses_[i].checksum != best.checksum);
    decided.push_back((members[i] ? kMember : std::byte{0}) | (needy ? kNeedy : std::byte{0}));
  }
  for (int island = 0; island < post_.size(); ++island)
    if (island != post_.me() && members[static_cast<size_t>(island)])
      post_.send(island, {Kind::found, 0, 0}, decided, comm::Purpose::control);
  return decided;
}

IslandExchange::Met IslandGate::found(const std::vector<std::byte>& decided, int from, State& state) {
  Founding founding;
  const size_t islands = statuses_.size();
  const auto me = static_cast<size_t>(post_.me());
  if (decided.size() != sizeof founding + islands)
    throw Error(Error::Kind::lost_peer, fmt::format("island {} sent a founding of another form", from));
  std::memcpy(&founding, decided.data(), sizeof founding);
  IslandSet members(islands), needy(islands);
  for (size_t i = 0; i < islands; ++i) {
    members[i] = (decided[sizeof founding + i] & kMember) != std::byte{0};
    needy[i] = (decided[sizeof founding + i] & kNeedy) != std::byte{0};
  }
  if (!members[me] || founding.source < 0 || founding.source >= post_.size())
    throw Error(Error::Kind::lost_peer, fmt::format("island {} founded the run without this one: start it again, it will join", from));
  reach(members);
  council_.found(members);
  if (founding.source == post_.me()) {
    for (size_t i = 0; i < islands; ++i)
      if (needy[i]) send_to(static_cast<int>(i), state, founding.step);
  } else if (needy[me]) {
    if (!take_state(founding.source, state))
      throw Error(Error::Kind::lost_peer,
                  fmt::format("island {} was lost before it had sent its model: start this one again", founding.source));
  }
  set_status(Phase::works, founding.step, 0);
  log_.info("{} islands train together from step {} on", std::count(members.begin(), members.end(), true), founding.step + 1);
  return {founding.step, needy[me], false};
}

// Whoever founds has met all others, but they may not have met each other yet. Taken for lost they would stay so, and rounds in which two
// members do not hear each other come to nothing.
void IslandGate::reach(const IslandSet& members) {
  const Nanoseconds begun = post_.now();
  while (true) {
    look();
    int missing = -1;
    for (int island = 0; island < post_.size() && missing < 0; ++island)
      if (island != post_.me() && members[static_cast<size_t>(island)] && post_.lost(island)) missing = island;
    if (missing < 0) return;
    if (post_.now() - begun > kReachLimit)
      throw Error(Error::Kind::lost_peer,
                  fmt::format("island {} cannot be reached from here within {:.0f} s, though others have: every island must be able to "
                              "connect to every other (--listen with an address that they can reach)",
                              missing, base::seconds(kReachLimit)));
    wait_a_while([&] { return bridge_.life(missing) != 0; });
  }
}

void IslandGate::send_to(int island, const State& state, int64_t now) {
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    post_.send(island, {Kind::state, now, static_cast<int32_t>(2 * f)}, bytes_of(state.anchors[f]), comm::Purpose::state);
    post_.send(island, {Kind::state, now, static_cast<int32_t>(2 * f + 1)}, bytes_of(state.momenta[f]), comm::Purpose::state);
  }
  post_.send(island, {Kind::welcome, now, 0}, {}, comm::Purpose::control);  // comes last: all is there then
}

at::Tensor IslandGate::take_row(int from, const Subject& subject, int64_t elements) {
  const std::vector<std::byte>* body = post_.find(from, subject);
  if (!body || static_cast<int64_t>(body->size()) != elements * 4)
    throw Error(Error::Kind::lost_peer, fmt::format("island {} sent a model of another form: all islands need the same recipe", from));
  at::Tensor row = at::empty({elements}, at::kFloat);
  std::memcpy(row.mutable_data_ptr<float>(), body->data(), body->size());
  post_.take(from, subject);
  return row;
}

// False: it was lost on the way.
bool IslandGate::take_state(int from, State& state) {
  int64_t& step = welcomed_[static_cast<size_t>(from)];
  while (step < 0) {
    if (post_.lost(from)) return false;
    wait_a_while([&] { return step >= 0; });
  }
  for (size_t f = 0; f < state.anchors.size(); ++f) {
    state.anchors[f] = take_row(from, {Kind::state, step, static_cast<int32_t>(2 * f)}, state.anchors[f].numel());
    state.momenta[f] = take_row(from, {Kind::state, step, static_cast<int32_t>(2 * f + 1)}, state.momenta[f].numel());
  }
  step = -1;
  return true;
}

// False: the sponsor was lost, or this island is no newcomer: another that founds the run with it was at work before word of that came
// here.
bool IslandGate::join(int sponsor, State& state, IslandExchange::Met& met) {
  log_.info("the other islands are at work: joining them, by island {}", sponsor);
  sponsor_ = sponsor;
  news_.clear();
  const auto me = static_cast<size_t>(post_.me());
  while (welcomed_[static_cast<size_t>(sponsor)] < 0) {
    if (post_.lost(sponsor) || founder_heard() >= 0) return false;
    post_.send(sponsor, {Kind::join, 0, 0}, {}, comm::Purpose::control);  // again and again: it hears of us only when it knows we are new
    wait_a_while([&] { return welcomed_[static_cast<size_t>(sponsor)] >= 0 || founder_heard() >= 0; });
    look();
  }
  met.step = welcomed_[static_cast<size_t>(sponsor)];
  if (!take_state(sponsor, state)) return false;
  post_.send(sponsor, {Kind::ready, 0, 0}, {}, comm::Purpose::control);
  while (true) {
    if (!wait_a_while([&] { return !news_.empty(); })) {
      look();
      if (post_.lost(sponsor)) return false;
      continue;
    }
    const News news = news_.front();
    const size_t f = static_cast<size_t>(news.part) % state.anchors.size();
    const at::Tensor gradient = told(news.step, news.part, state.anchors[f].numel());
    if (gradient.defined()) outer_step_(state.anchors[f], state.momenta[f], gradient, news.step);
    met.step = news.now;
    if (news.members[me]) break;
  }
  met.theirs = met.joined = true;
  set_status(Phase::works, met.step, 0);
  log_.info("joined the other islands: {} train together from step {} on", council_.count(), met.step + 1);
  return true;
}

bool IslandGate::is_asked() const {
  for (size_t i = 0; i < asked_.size(); ++i)
    if (asked_[i] && !post_.lost(static_cast<int>(i))) return true;
  return false;
}

void IslandGate::give(int64_t now, const State& state) {
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (!asked_[i]) continue;
    asked_[i] = false;
    sponsored_[i] = true;
    log_.info("island {} joins: it gets the model of step {}", i, now);
    send_to(static_cast<int>(i), state, now);
  }
}

void IslandGate::tell(const IslandSet& members, int64_t step, int32_t part, int64_t now, const at::Tensor& gradient) {
  std::vector<std::byte> body = bytes_of(NewsHead{now, gradient.defined() ? 1 : 0});
  for (const bool member : council_.members()) body.push_back(std::byte{member});
  for (size_t i = 0; i < sponsored_.size(); ++i) {
    if (!sponsored_[i] || members[i]) continue;
    if (gradient.defined()) post_.send(static_cast<int>(i), {Kind::landed, step, part}, bytes_of(gradient), comm::Purpose::state);
    post_.send(static_cast<int>(i), {Kind::news, step, part}, body, comm::Purpose::control);
  }
}

bool IslandGate::is_told(int64_t step, int32_t part) {
  return std::any_of(news_.begin(), news_.end(), [&](const News& news) { return news.step == step && news.part == part; });
}

at::Tensor IslandGate::told(int64_t step, int32_t part, int64_t elements) {
  const auto found = std::find_if(news_.begin(), news_.end(), [&](const News& news) { return news.step == step && news.part == part; });
  CAIRN_CHECK(found != news_.end(), "no news of step {}", step);
  const News news = std::move(*found);
  news_.erase(found);
  council_.found(news.members);
  return news.defined ? take_row(sponsor_, {Kind::landed, step, part}, elements) : at::Tensor();
}

}  // namespace cairn::sync
