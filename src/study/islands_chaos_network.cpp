// Links that are cut, streams that break, processes that stop, die and start again; and time, which passes in ticks.
#include <algorithm>

#include "study/islands_chaos_world.h"

namespace cairn::study::chaos {
namespace {

constexpr Nanoseconds kCallLimit = 150s;  // for one call of the rule: the deadline without a majority, and again while it comes back

}  // namespace

void ChaosWorld::disturb() {
  const int a = any(), b = any();
  switch (below(15)) {
    case 0:
      cut_[place(a, b)] = 1;
      return;
    case 1:
    case 2:
      cut_[place(a, b)] = cut_[place(b, a)] = 1;
      return;
    case 3:  // two halves
      for (int i = 0; i < count(); ++i)
        for (int j = 0; j < count(); ++j)
          if ((i <= a) != (j <= a)) cut_[place(i, j)] = 1;
      return;
    case 4:
    case 5:
    case 6:
      std::fill(cut_.begin(), cut_.end(), 0);
      return;
    case 7:
      return kill(a);
    case 8:
      kill(a);
      if (below(2) == 0) at(a).snapshot.reset();
      return start(a);
    case 9:
      if (below(10) == 0)  // everything stops at once
        for (int island = 0; island < count(); ++island) kill(island);
      [[fallthrough]];
    case 10:
      for (int island = 0; island < count(); ++island) start(island);
      return;
    case 11:
      return storm();
    default:
      at(a).stopped_until = now_ + kTick * static_cast<int64_t>(below(below(2) == 0 ? 50 : 600));
  }
}

// For some seconds the leader's links are cut and processes die and start again all the time: votes are cast and must not be forgotten.
void ChaosWorld::storm() {
  for (int gust = 0; gust < 60 && result_.violation.empty(); ++gust) {
    const int a = any(), b = any();
    if (below(4) == 0) cut_[place(a, b)] = cut_[place(b, a)] = below(2) == 0 ? 1 : 0;
    kill(a);
    start(a);
    advance(kTick * static_cast<int64_t>(1 + below(8)));
  }
  std::fill(cut_.begin(), cut_.end(), 0);
}

void ChaosWorld::connect(int a, int b) {
  Stream& stream = stream_of(a, b);
  if ((stream.open[0] && stream.open[1]) || cut_[place(a, b)] != 0 || cut_[place(b, a)] != 0 || !awake(a) || !awake(b) || below(3) != 0)
    return;
  stream = {};
  const bool first = at(a).core->opened(b, at(b).core->incarnation(), now_),
             second = at(b).core->opened(a, at(a).core->incarnation(), now_);
  stream.open = {first, second};
  if (first && second) return;
  if (first) at(a).core->closed(b, now_);
  if (second) at(b).core->closed(a, now_);
  stream = {};
}

void ChaosWorld::deliver(int from, int to) {
  Stream& stream = stream_of(from, to);
  const size_t side = side_of(from, to);
  if (cut_[place(from, to)] != 0 || !awake(to) || !stream.open[1 - side]) return;
  auto& queue = stream.sent[side];
  while (!queue.empty() && queue.front().first <= now_) {
    at(to).core->arrived(from, std::move(queue.front().second), now_);
    queue.pop_front();
  }
  if (!stream.ending[side] || !queue.empty()) return;
  stream.open[1 - side] = false;
  at(to).core->closed(from, now_);
}

// What the thread of a bridge does.
void ChaosWorld::exchange_frames(int island) {
  comm::SiteChannels& core = *at(island).core;
  for (comm::SiteChannels::Message& message : core.take_messages())
    at(island).inbox.push_back({message.from, message.incarnation, *message.body});
  for (const comm::SiteChannels::Relayed& one : core.take_relayed()) result_.relayed += one.bytes > 0 ? 1 : 0;
  for (const int other : core.silent(now_)) {
    Stream& stream = stream_of(island, other);
    const size_t side = side_of(island, other);
    stream.open[side] = false;
    stream.ending[side] = true;
    core.closed(other, now_);
  }
  for (int other = 0; other < count(); ++other) {
    if (other == island) continue;
    Stream& stream = stream_of(island, other);
    const size_t side = side_of(island, other);
    if (!stream.open[side]) continue;
    while (std::optional<comm::SiteFrame> frame = core.next_frame(other, now_)) {
      const Nanoseconds before = stream.sent[side].empty() ? now_ : stream.sent[side].back().first;
      const Nanoseconds delay = kTick * static_cast<int64_t>(below(10) == 0 ? below(slow_links_ && !healed_ ? 200 : 20) : 1);
      stream.sent[side].emplace_back(std::max(before, now_ + delay), std::move(*frame));
    }
  }
}

void ChaosWorld::check_waits() {
  for (int island = 0; island < count(); ++island) {
    const Island& one = at(island);
    if (one.runs && one.called_at >= Nanoseconds{0} && now_ - one.called_at > kCallLimit)
      fail(fmt::format("island {} waits for longer than any deadline", island));
  }
}

void ChaosWorld::advance(Nanoseconds time) {
  for (const Nanoseconds until = now_ + time; now_ < until && result_.violation.empty(); now_ += kTick) {
    for (int a = 0; a < count(); ++a)
      for (int b = a + 1; b < count(); ++b) {
        connect(a, b);
        deliver(a, b);
        deliver(b, a);
      }
    for (int island = 0; island < count(); ++island) {
      if (!awake(island)) continue;
      exchange_frames(island);
      Island& one = at(island);
      if (now_ < one.wake_at && !(one.wakes_on_message && !one.inbox.empty())) continue;
      resume(island);
      if (one.runs) exchange_frames(island);
    }
    check_waits();
    if (healed_ && any_ended_well()) std::fill(cut_.begin(), cut_.end(), 0);  // it may have been the one in the middle
    if (healed_ && all_ended()) return;
  }
}

void ChaosWorld::heal() {
  healed_ = true;
  healed_at_ = now_;
  std::fill(cut_.begin(), cut_.end(), 0);
  if (below(2) == 0) {  // links are enough that lead to one of them: it relays
    const int middle = any();
    for (int a = 0; a < count(); ++a)
      for (int b = 0; b < a; ++b)
        if (a != middle && b != middle && below(3) != 0) cut_[place(a, b)] = cut_[place(b, a)] = 1;
  }
  for (int island = 0; island < count(); ++island) {
    at(island).stopped_until = {};
    start(island);
  }
}

bool ChaosWorld::any_ended_well() {
  return std::any_of(islands_.begin(), islands_.end(), [](const Island& one) { return one.ended_well.has_value(); });
}

bool ChaosWorld::all_ended() {
  for (const Island& one : islands_)
    if (one.runs) return false;
  return true;
}

}  // namespace cairn::study::chaos
