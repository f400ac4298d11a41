// The faults of the simulated network: when each is triggered, and what it does.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/network.h"

namespace cairn::comm {
namespace {

using Kind = Fault::Kind;

constexpr Nanoseconds kOvertakenAtLatest = std::chrono::milliseconds(1);  // a message to be overtaken arrives at this delay if none follows

std::vector<bool> members(const std::vector<int>& ranks, int size) {
  std::vector<bool> in(static_cast<size_t>(size));
  for (const int rank : ranks) in[rank] = true;
  return in;
}

void flip(LocalEvent& event, int64_t bit) {
  if (event.data && event.bytes > 0) {
    event.data[bit / 8 % event.bytes] ^= std::byte(1 << bit % 8);
  } else {
    event.envelope.sequence ^= uint64_t{1} << bit % 64;
  }
}

}  // namespace

void LocalNetwork::Net::plan_faults() {
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& fault = options_.faults[i];
    check(fault, size());
    if (fault.at.count() >= 0) post_network_event(LocalEvent::Kind::fault, static_cast<int>(i), fault.at);
  }
}

void LocalNetwork::Net::post_network_event(LocalEvent::Kind kind, int fault, Nanoseconds time) {
  LocalEvent event{.kind = kind, .from = -1, .to = -1, .time = std::max(time, now_)};
  event.order = scramble({options_.seed, static_cast<uint64_t>(kind), static_cast<uint64_t>(fault)});
  event.number = network_events_++;
  event.fault = fault;
  push(std::move(event));
}

void LocalNetwork::Net::before_collective(int rank, int64_t number) {
  Rank& self = *ranks_[rank];
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& fault = options_.faults[i];
    if (fault.rank != rank || fault.before_collective != number) continue;
    std::unique_lock guard(lock_);
    // Posted as an event even if it takes effect at once, so that the log has it in order.
    post_network_event(LocalEvent::Kind::fault, static_cast<int>(i), self.transport->clock().now());
    if (fault.kind == Kind::slow) self.pause = fault.by;
    if (fault.kind == Kind::kill) {
      fired_[i] = true;
      self.killed = true;
      throw Killed();
    }
    if (fault.kind == Kind::freeze) {
      freeze(self, static_cast<int>(i), self.transport->clock().now());
      progress_and_unlock(guard);
      self.gate.pass();
      if (self.killed) throw Killed();
    }
  }
  if (self.pause.count() > 0) {
    const Nanoseconds end = self.transport->clock().now() + self.pause;
    const Completion slept = self.transport->timer(end);
    self.transport->drive([&] { return slept.done(); }, end + std::chrono::seconds(1), "work of its own");
  }
}

void LocalNetwork::Net::strike_message(LocalEvent& event, int64_t number) {
  event.checksum = event.computed_checksum();
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& fault = options_.faults[i];
    if (fault.from != event.from || fault.to != event.to) continue;
    const bool now = fault.message == number;
    if (!strikes_a_message(fault.kind)) {
      if (now) post_network_event(LocalEvent::Kind::fault, static_cast<int>(i), event.posted);
    } else if (now || armed_[i]) {
      armed_[i] = false;
      strike_this_message(event, static_cast<int>(i));
    }
  }
}

void LocalNetwork::Net::strike_this_message(LocalEvent& event, int fault) {
  const Fault& what = options_.faults[fault];
  fired_[fault] = true;
  if (options_.keep_event_log) log_ += fmt::format("{} fault: {}\n", event.posted.count(), describe(what));
  switch (what.kind) {
    case Kind::drop:
      event.dropped = true;
      silenced_ = true;
      break;
    case Kind::delay:
      event.time += what.by;
      break;
    case Kind::reorder:
      event.time += kOvertakenAtLatest;
      event.to_be_overtaken = true;
      break;
    case Kind::corrupt:
      flip(event, what.bit);
      event.damaged = true;
      break;
    default:
      break;
  }
}

void LocalNetwork::Net::apply(const LocalEvent& event) {
  const Fault& fault = options_.faults[event.fault];
  switch (event.kind) {
    case LocalEvent::Kind::thaw:
      if (options_.keep_event_log) log_ += fmt::format("{} rank {} goes on\n", event.time.count(), fault.rank);
      return thaw(fault.rank, event.time);
    case LocalEvent::Kind::heal:
      if (options_.keep_event_log) log_ += fmt::format("{} healed: {}\n", event.time.count(), describe(fault));
      return heal(event.fault, event.time);
    default:
      if (options_.keep_event_log) log_ += fmt::format("{} fault: {}\n", event.time.count(), describe(fault));
      return strike(event.fault, event.time);
  }
}

void LocalNetwork::Net::strike(int fault, Nanoseconds time) {
  const Fault& what = options_.faults[fault];
  if (strikes_a_message(what.kind)) {
    armed_[fault] = true;
    return;
  }
  if (what.kind == Kind::partition) {
    fired_[fault] = true;
    return part(fault, time);
  }
  Rank& rank = *ranks_[what.rank];
  if (rank.status == Status::ended || fired_[fault]) return;
  if (what.kind == Kind::freeze && rank.status == Status::frozen) return;
  fired_[fault] = true;
  if (what.kind == Kind::kill) kill(rank, time);
  if (what.kind == Kind::freeze) freeze(rank, fault, time);
  if (what.kind == Kind::slow) {
    shaper_.slow_down(what.rank, what.factor);
    rank.pause = what.by;
  }
}

void LocalNetwork::Net::kill(Rank& rank, Nanoseconds time) {
  rank.killed = true;
  rank.transport->own_clock().advance_to(time);
  resume(rank, false);
}

bool LocalNetwork::Net::noticed(const Fault& fault) const {
  return options_.lost_after.count() > 0 && (fault.lasts.count() == 0 || fault.lasts > options_.lost_after);
}

void LocalNetwork::Net::freeze(Rank& rank, int fault, Nanoseconds time) {
  const Fault& what = options_.faults[fault];
  fired_[fault] = true;
  silenced_ = true;
  set_status(rank, Status::frozen);
  if (what.lasts.count() > 0) {
    thawing_ += 1;
    post_network_event(LocalEvent::Kind::thaw, fault, time + what.lasts);
  }
  for (int peer = 0; peer < size() && noticed(what); ++peer) {
    if (peer != what.rank) fall_silent(what.rank, peer, time, /*to_all=*/true);
  }
}

// Delivers what arrived meanwhile first, then checks whether the wait has timed out.
void LocalNetwork::Net::thaw(int index, Nanoseconds time) {
  Rank& rank = *ranks_[index];
  thawing_ -= 1;
  if (rank.status != Status::frozen) return;
  rank.transport->own_clock().advance_to(time);
  for (const Held& held : std::exchange(rank.held, {})) {
    held.incoming ? rank.transport->arrive(held.event) : rank.transport->arrived(held.event);
  }
  rank.transport->run_done();
  if (!rank.in_wait) return resume(rank, true);
  if ((*rank.done)()) return resume(rank, true);
  if (rank.until <= time) return resume(rank, false);
  set_status(rank, Status::waiting);
  deadlines_.push({rank.until, index, rank.waits});
}

void LocalNetwork::Net::part(int fault, Nanoseconds time) {
  const Fault& what = options_.faults[fault];
  silenced_ = true;
  partitions_.push_back({fault, members(what.these, size()), members(what.those, size()), {}});
  if (what.lasts.count() > 0) post_network_event(LocalEvent::Kind::heal, fault, time + what.lasts);
  for (int from = 0; from < size() && noticed(what); ++from) {
    for (int to = 0; to < size(); ++to) {
      if (from != to && between(from, to) == &partitions_.back()) fall_silent(from, to, time, /*to_all=*/false);
    }
  }
}

void LocalNetwork::Net::heal(int fault, Nanoseconds time) {
  const auto found = std::find_if(partitions_.begin(), partitions_.end(), [&](const Partition& one) { return one.fault == fault; });
  const std::vector<uint32_t> held = std::move(found->held);
  partitions_.erase(found);
  Nanoseconds arrival = time + shaper_.least_latency();
  for (const uint32_t index : held) {  // in their original order
    pool_[index].pending = true;
    arrival += Nanoseconds(1);
    reschedule(index, arrival);
  }
}

LocalNetwork::Net::Partition* LocalNetwork::Net::between(int from, int to) {
  for (Partition& one : partitions_) {
    const bool one_way = options_.faults[one.fault].one_way;
    if ((one.these[from] && one.those[to]) || (!one_way && one.those[from] && one.these[to])) return &one;
  }
  return nullptr;
}

void LocalNetwork::Net::fall_silent(int rank, int at_rank, Nanoseconds time, bool to_all) {
  LocalEvent event{.kind = LocalEvent::Kind::silence, .from = rank, .to = at_rank, .time = time + options_.lost_after};
  event.number = network_events_++;
  event.fault_seen_by_all = to_all;
  event.order =
      scramble({options_.seed, static_cast<uint64_t>(event.time.count()), static_cast<uint64_t>(rank), static_cast<uint64_t>(at_rank)});
  event.loss = std::make_shared<const LostPeer>(
      LostPeer{rank, rank, fmt::format("no sign of life for {:.1f} s", base::seconds(options_.lost_after))});
  push(std::move(event));
}

std::vector<bool> LocalNetwork::Net::faults_fired() const {
  const std::lock_guard guard(lock_);
  return fired_;
}

}  // namespace cairn::comm
