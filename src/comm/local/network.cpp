// The simulated network: a conservative parallel discrete-event simulation with real threads as ranks.
//
// - A rank runs on its thread until it waits. Its sends become events in its own list, so running ranks do not interact.
// - The last rank that comes to wait drives the network, under the lock: it collects the new events, gives each its arrival time from the
//   LinkModel, and delivers the earliest ones.
// - Lookahead: no message arrives sooner than the least latency after it was sent. So events within one least latency of the earliest one
//   cannot cause each other; all of them are delivered as a batch, and then the ranks they resume run in parallel. Faults are applied
//   alone, between batches.
// - Equal times are ordered by a hash of (seed, from, to, number). Nothing depends on thread scheduling: one seed gives one event log.
// - If all ranks wait and no event is left, that is a deadlock, and all ranks get an error that names who waits for what.
#include "comm/local/network.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int kNamedInDeadlock = 16;

}  // namespace

void LocalNetwork::Net::Gate::open_gate() {
  const std::lock_guard guard(lock);
  open = true;
  opened.notify_one();
}

void LocalNetwork::Net::Gate::pass() {
  std::unique_lock guard(lock);
  opened.wait(guard, [this] { return open; });
  open = false;
}

LocalNetwork::Net::Net(int ranks, LocalOptions options)
    : options_(std::move(options)),
      shaper_(options_.link, ranks, options_.seed),
      lines_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)),
      fired_(options_.faults.size()),
      armed_(options_.faults.size()) {
  for (int rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->index = rank;
  }
  counts_[static_cast<size_t>(Status::running)] = ranks;
  plan_faults();
}

std::unique_ptr<Transport> LocalNetwork::Net::make_transport(int rank) {
  auto transport = std::make_unique<LocalTransport>(*this, rank, size());
  const std::lock_guard guard(lock_);
  ranks_[rank]->transport = transport.get();
  return transport;
}

void LocalNetwork::Net::gone(LocalTransport& transport) {
  const std::lock_guard guard(lock_);
  Rank& rank = *ranks_[transport.rank()];
  rank.last_posts = transport.take_posts();
  rank.ledger = transport.ledger();
  rank.cancelled = transport.cancelled();
  rank.transport = nullptr;
}

void LocalNetwork::Net::end(int rank) {
  std::unique_lock guard(lock_);
  set_status(*ranks_[rank], Status::ended);
  progress_and_unlock(guard);
}

bool LocalNetwork::Net::wait(int rank, const std::function<bool()>& done, Nanoseconds until, const std::string& doing) {
  std::unique_lock guard(lock_);
  Rank& self = *ranks_[rank];
  if (self.killed) throw Killed();
  self.in_wait = true;
  self.done = &done;
  self.until = until;
  self.doing = doing;
  self.waits += 1;
  deadlines_.push({until, rank, self.waits});
  set_status(self, Status::waiting);
  progress_and_unlock(guard);
  self.gate.pass();
  self.in_wait = false;
  if (self.killed) throw Killed();
  if (self.stuck) throw Error(*std::exchange(self.stuck, std::nullopt));
  return self.in_time;
}

void LocalNetwork::Net::set_status(Rank& rank, Status status) {
  counts_[static_cast<size_t>(rank.status)] -= 1;
  rank.status = status;
  counts_[static_cast<size_t>(status)] += 1;
}

void LocalNetwork::Net::resume(Rank& rank, bool in_time) {
  set_status(rank, Status::running);
  rank.in_time = in_time;
  resumed_.push_back(rank.index);
}

// Gates are opened after the lock is released, so that a resumed rank does not block on it at once.
void LocalNetwork::Net::progress_and_unlock(std::unique_lock<std::mutex>& guard) {
  progress();
  const std::vector<int> resumed = std::exchange(resumed_, {});
  guard.unlock();
  for (const int rank : resumed) ranks_[rank]->gate.open_gate();
}

void LocalNetwork::Net::progress() {
  while (count(Status::running) == 0) {
    take_posts();
    if (count(Status::waiting) == 0 && thawing_ == 0) {  // all work has ended: release the frozen ranks
      for (const auto& rank : ranks_) {
        if (rank->status == Status::frozen) kill(*rank, now_);
      }
      return;
    }
    const LocalEvent* next = next_event();
    const auto deadline = next_deadline();
    if (next && (!deadline || next->time <= *deadline)) {
      happen();
    } else if (next || silenced_) {
      time_out(*deadline);
    } else {
      deadlock();
    }
  }
}

void LocalNetwork::Net::take_posts() {
  const bool in_turn = options_.link.contention == LinkModel::Contention::per_nic;  // a shared NIC serves messages in the order of time
  std::vector<LocalEvent> all;
  const auto take = [&](std::vector<LocalEvent>&& posts) {
    for (LocalEvent& event : posts) in_turn ? all.push_back(std::move(event)) : schedule(std::move(event));
  };
  for (const auto& rank : ranks_) {
    if (!rank->last_posts.empty()) take(std::exchange(rank->last_posts, {}));
    if (rank->transport && rank->transport->has_posts()) take(rank->transport->take_posts());
  }
  const auto earlier = [](const LocalEvent& a, const LocalEvent& b) {
    return std::tie(a.posted, a.from, a.number) < std::tie(b.posted, b.from, b.number);
  };
  std::sort(all.begin(), all.end(), earlier);
  for (LocalEvent& event : all) schedule(std::move(event));
}

void LocalNetwork::Net::schedule(LocalEvent&& event) {
  event.order = scramble({options_.seed, static_cast<uint64_t>(event.from), static_cast<uint64_t>(event.to), event.number});
  if (event.kind == LocalEvent::Kind::timer) {
    push(std::move(event));
    return;
  }
  const int64_t on_the_wire = event.carries_data() ? event.bytes : 0;
  Line& line = lines_[static_cast<size_t>(event.from) * ranks_.size() + static_cast<size_t>(event.to)];
  event.time = shaper_.send(event.from, event.to, on_the_wire, event.posted).arrives;  // at the receiver's card (enter_card)
  if (!event.counts()) event.time = std::max(event.time, line.last_arrival + Nanoseconds(1));  // it arrives after everything sent before it
  const auto overtaken = event.counts() ? std::exchange(line.overtaken, std::nullopt) : std::nullopt;
  if (event.counts() && !options_.faults.empty()) strike_message(event, line.messages++);
  const Nanoseconds time = event.time;
  const uint64_t number = event.number;
  const bool to_be_overtaken = event.to_be_overtaken;
  line.last_arrival = std::max(line.last_arrival, time);
  const uint32_t index = push(std::move(event));
  if (to_be_overtaken) line.overtaken = {index, number};
  if (overtaken && pool_[overtaken->first].pending && pool_[overtaken->first].number == overtaken->second) {
    reschedule(overtaken->first, time + Nanoseconds(1));
    line.last_arrival = std::max(line.last_arrival, time + Nanoseconds(1));
  }
}

uint32_t LocalNetwork::Net::push(LocalEvent&& event) {
  uint32_t index = static_cast<uint32_t>(pool_.size());
  if (unused_.empty()) {
    pool_.push_back(std::move(event));
  } else {
    index = unused_.back();
    unused_.pop_back();
    pool_[index] = std::move(event);
  }
  put_in_queue(index);
  return index;
}

void LocalNetwork::Net::put_in_queue(uint32_t index) {
  const LocalEvent& event = pool_[index];
  queue_.push({event.time, event.order, event.from, event.number, index});
}

void LocalNetwork::Net::reschedule(uint32_t index, Nanoseconds time) {
  pool_[index].time = time;
  put_in_queue(index);
}

void LocalNetwork::Net::release(uint32_t index) {
  pool_[index] = LocalEvent{.pending = false};
  unused_.push_back(index);
}

const LocalEvent* LocalNetwork::Net::next_event() {
  while (!queue_.empty()) {
    const Entry& top = queue_.top();
    const LocalEvent& event = pool_[top.index];
    if (event.pending && event.time == top.time && event.number == top.number && event.from == top.from) return &event;
    queue_.pop();
  }
  return nullptr;
}

uint32_t LocalNetwork::Net::pop() {
  const uint32_t index = queue_.top().index;
  queue_.pop();
  pool_[index].pending = false;
  now_ = std::max(now_, pool_[index].time);
  return index;
}

void LocalNetwork::Net::happen() {
  const LocalEvent* next = next_event();
  if (next->of_network()) {
    const uint32_t index = pop();
    apply(pool_[index]);
    return release(index);
  }
  const Nanoseconds horizon = next->time + std::max(shaper_.least_latency(), Nanoseconds(1));
  for (; next && next->time < horizon && !next->of_network(); next = next_event()) {
    if (const auto deadline = next_deadline(); deadline && *deadline < next->time) return;
    if (!enter_card(queue_.top().index)) deliver(pop());
  }
}

// A shared NIC serves what arrives in the order of arrival, so only now, when nothing earlier can come, does it take the event. Returns
// whether the event is put off until the NIC is done with it. What does not count still arrives after everything sent before it.
bool LocalNetwork::Net::enter_card(uint32_t index) {
  LocalEvent& event = pool_[index];
  if (options_.link.contention != LinkModel::Contention::per_nic || event.kind == LocalEvent::Kind::timer || event.of_network()) return false;
  if (std::exchange(event.through_card, true)) return false;
  Line& line = lines_[static_cast<size_t>(event.from) * ranks_.size() + static_cast<size_t>(event.to)];
  Nanoseconds done = shaper_.receive(event.from, event.to, event.carries_data() ? event.bytes : 0, event.time);
  if (!event.counts()) done = std::max(done, line.last_arrival + Nanoseconds(1));
  line.last_arrival = std::max(line.last_arrival, done);
  if (done <= event.time) return false;
  reschedule(index, done);
  return true;
}

void LocalNetwork::Net::deliver(uint32_t index) {
  LocalEvent& event = pool_[index];
  Partition* const partition = !partitions_.empty() && event.travels() ? between(event.from, event.to) : nullptr;
  if (options_.keep_event_log) log(event, event.dropped ? " dropped" : partition ? " held back" : "");
  Rank& from = *ranks_[event.from];
  Rank& to = *ranks_[event.to];
  if (!event.dropped && !partition && to.transport) {
    if (to.status == Status::frozen) {
      to.held.push_back({event, true});
    } else {
      to.transport->own_clock().advance_to(event.time);
      to.transport->arrive(event);
      step(to, event.time);
    }
  }
  if (event.carries_data() && !std::exchange(event.told, true)) {
    if (!from.transport) {
      from.ledger.book(event.booking());
    } else if (from.status == Status::frozen) {
      from.held.push_back({event, false});
    } else {
      from.transport->own_clock().advance_to(event.time);
      from.transport->arrived(event);
      step(from, event.time);
    }
  }
  if (partition && !event.dropped) {
    partition->held.push_back(index);
  } else {
    release(index);
  }
}

void LocalNetwork::Net::step(Rank& rank, Nanoseconds time) {
  rank.transport->own_clock().advance_to(time);
  rank.transport->run_done();
  if (rank.status == Status::waiting && (*rank.done)()) resume(rank, true);
}

void LocalNetwork::Net::time_out(Nanoseconds at) {
  now_ = std::max(now_, at);
  for (auto next = next_deadline(); next && *next == at; next = next_deadline()) {
    Rank& rank = *ranks_[deadlines_.top().rank];
    if (options_.keep_event_log) {
      log_ += fmt::format("{} rank {} has waited long enough for {}\n", at.count(), rank.transport->rank(), rank.doing);
    }
    rank.transport->own_clock().advance_to(at);
    resume(rank, false);
  }
}

std::optional<Nanoseconds> LocalNetwork::Net::next_deadline() {
  while (!deadlines_.empty()) {
    const Deadline& top = deadlines_.top();
    const Rank& rank = *ranks_[top.rank];
    if (rank.status == Status::waiting && rank.waits == top.wait) return top.until;
    deadlines_.pop();
  }
  return std::nullopt;
}

void LocalNetwork::Net::deadlock() {
  std::string text;
  int named = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->status != Status::waiting) continue;
    if (++named <= kNamedInDeadlock) text += fmt::format("{}rank {} in {}", named > 1 ? "; " : "", i, ranks_[i]->doing);
  }
  if (named > kNamedInDeadlock) text += fmt::format("; and {} more", named - kNamedInDeadlock);
  for (const auto& rank : ranks_) {
    if (rank->status != Status::waiting) continue;
    rank->stuck = Error(Error::Kind::broken_invariant, "deadlock, all ranks wait and nothing is on the way: " + text);
    resume(*rank, false);
  }
}

void LocalNetwork::Net::log(const LocalEvent& event, std::string_view remark) {
  auto out = std::back_inserter(log_);
  fmt::format_to(out, "{} {}>{} {}", event.time.count(), event.from, event.to, name(event.kind));
  if (event.counts()) {
    fmt::format_to(out, " {} group={:x} operation={} step={} bytes={}", describe(event.envelope.signature, event.envelope.what),
                   event.envelope.group, event.envelope.sequence, event.envelope.step, event.bytes);
  }
  log_ += remark;
  log_ += '\n';
}

Ledger LocalNetwork::Net::ledger() const {
  const std::lock_guard guard(lock_);
  Ledger all;
  for (const auto& rank : ranks_) all.merge(rank->ledger);
  return all;
}

std::vector<int64_t> LocalNetwork::Net::cancelled() const {
  const std::lock_guard guard(lock_);
  std::vector<int64_t> counts;
  for (const auto& rank : ranks_) counts.push_back(rank->cancelled);
  return counts;
}

std::string LocalNetwork::Net::event_log() const {
  const std::lock_guard guard(lock_);
  return log_;
}

}  // namespace cairn::comm
