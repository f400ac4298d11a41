// The virtual network: order, time, and who runs when.
#include "comm/local_network.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int kNamedInDeadlock = 16;

// Scrambles its arguments into 64 even bits (the finaliser of SplitMix64).
uint64_t hash(std::initializer_list<uint64_t> values) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (const uint64_t value : values) {
    h = (h ^ value) + 0x9e3779b97f4a7c15;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
    h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
    h ^= h >> 31;
  }
  return h;
}

std::string_view word(LocalEvent::Kind kind) {
  constexpr std::array<std::string_view, 6> words{"message", "pull", "reply", "timer", "lost", "left"};
  return words.at(static_cast<size_t>(kind));
}

}  // namespace

LocalNetwork::Net::Net(int ranks, LocalOptions options) : options_(std::move(options)) {
  CAIRN_CHECK(ranks >= 1, "a local world of {} ranks", ranks);
  CAIRN_CHECK(options_.link.bytes_per_s > 0 && options_.link.latency.count() >= 0, "a link of {} bytes/s", options_.link.bytes_per_s);
  for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>());
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
  rank.transport = nullptr;
}

void LocalNetwork::Net::end(int rank) {
  const std::lock_guard guard(lock_);
  ranks_[rank]->status = Status::ended;
  if (!anyone(Status::running)) move();
}

void LocalNetwork::Net::freeze(int rank) {
  std::unique_lock guard(lock_);
  Rank& self = *ranks_[rank];
  self.status = Status::frozen;
  if (!anyone(Status::running)) move();
  self.wake.wait(guard, [&] { return self.status == Status::running; });
  throw Killed();
}

bool LocalNetwork::Net::wait(int rank, const std::function<bool()>& done, Nanoseconds until, const std::string& doing) {
  std::unique_lock guard(lock_);
  Rank& self = *ranks_[rank];
  self.done = &done;
  self.until = until;
  self.doing = doing;
  self.status = Status::waiting;
  if (!anyone(Status::running)) move();
  self.wake.wait(guard, [&] { return self.status == Status::running; });
  if (self.stuck) throw Error(*std::exchange(self.stuck, std::nullopt));
  return self.in_time;
}

bool LocalNetwork::Net::anyone(Status status) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank->status == status; });
}

void LocalNetwork::Net::move() {
  while (!anyone(Status::running)) {
    take_posts();
    if (!anyone(Status::waiting)) {  // the work is over: let the frozen go
      for (const auto& rank : ranks_) {
        if (rank->status == Status::frozen) resume(*rank, false);
      }
      return;
    }
    const auto deadline = next_deadline();
    if (!events_.empty() && events_.top().time <= *deadline) {
      happen();
    } else if (!events_.empty() || anyone(Status::frozen)) {
      time_out(*deadline);
    } else {
      deadlock();
    }
  }
}

void LocalNetwork::Net::take_posts() {
  for (const auto& rank : ranks_) {
    for (LocalEvent& event : std::exchange(rank->last_posts, {})) schedule(std::move(event));
    if (!rank->transport || rank->status == Status::frozen) continue;
    for (LocalEvent& event : rank->transport->take_posts()) schedule(std::move(event));
  }
}

void LocalNetwork::Net::schedule(LocalEvent event) {
  const auto from = static_cast<uint64_t>(event.from), to = static_cast<uint64_t>(event.to);
  event.order = hash({options_.seed, from, to, event.number});
  if (event.kind != LocalEvent::Kind::timer) {
    const LinkModel& model = options_.link;
    Link& link = links_[{event.from, event.to}];
    const int64_t on_the_wire = event.kind == LocalEvent::Kind::pull ? 0 : event.bytes;
    const double share = static_cast<double>(hash({event.order, 1}) >> 11) * 0x1p-53;  // in [0, 1)
    link.free =
        std::max(link.free, event.posted) + Nanoseconds(static_cast<int64_t>(static_cast<double>(on_the_wire) / model.bytes_per_s * 1e9));
    event.time =
        link.free + model.latency + Nanoseconds(static_cast<int64_t>(share * model.jitter * static_cast<double>(model.latency.count())));
    const bool last = event.kind == LocalEvent::Kind::lost || event.kind == LocalEvent::Kind::left;
    if (last) event.time = std::max(event.time, link.last_arrival + Nanoseconds(1));  // what was sent before it comes before it
    link.last_arrival = std::max(link.last_arrival, event.time);
  }
  events_.push(std::move(event));
}

void LocalNetwork::Net::happen() {
  const Nanoseconds horizon = events_.top().time + std::max(options_.link.latency, Nanoseconds(1));
  while (!events_.empty() && events_.top().time < horizon) {
    if (const auto deadline = next_deadline(); deadline && *deadline < events_.top().time) return;
    const LocalEvent event = events_.top();
    events_.pop();
    if (options_.keep_event_log) log(event);
    Rank& from = *ranks_[event.from];
    Rank& to = *ranks_[event.to];
    if (to.transport && to.status != Status::frozen) {
      to.transport->own_clock().advance_to(event.time);
      to.transport->arrive(event);
      step(to, event.time);
    }
    if (from.transport && from.status != Status::frozen) {
      from.transport->arrived(event);
      step(from, event.time);
    } else if (event.kind == LocalEvent::Kind::message || event.kind == LocalEvent::Kind::reply) {
      (from.transport ? from.transport->ledger() : from.ledger).book(event.booking());
    }
  }
}

void LocalNetwork::Net::step(Rank& rank, Nanoseconds time) {
  rank.transport->own_clock().advance_to(time);
  rank.transport->run_done();
  if (rank.status == Status::waiting && (*rank.done)()) resume(rank, true);
}

void LocalNetwork::Net::time_out(Nanoseconds at) {
  for (const auto& rank : ranks_) {
    if (rank->status != Status::waiting || rank->until != at) continue;
    if (options_.keep_event_log)
      log_ += fmt::format("{} rank {} has waited long enough for {}\n", at.count(), rank->transport->rank(), rank->doing);
    rank->transport->own_clock().advance_to(at);
    resume(*rank, false);
  }
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

void LocalNetwork::Net::resume(Rank& rank, bool in_time) {
  rank.status = Status::running;
  rank.in_time = in_time;
  rank.wake.notify_one();
}

std::optional<Nanoseconds> LocalNetwork::Net::next_deadline() const {
  std::optional<Nanoseconds> first;
  for (const auto& rank : ranks_) {
    if (rank->status == Status::waiting && (!first || rank->until < *first)) first = rank->until;
  }
  return first;
}

void LocalNetwork::Net::log(const LocalEvent& event) {
  log_ += fmt::format("{} {}>{} {}", event.time.count(), event.from, event.to, word(event.kind));
  if (event.kind == LocalEvent::Kind::message || event.kind == LocalEvent::Kind::reply || event.kind == LocalEvent::Kind::pull) {
    log_ += fmt::format(" {} group={:x} operation={} step={} bytes={}", describe(event.envelope.signature, event.envelope.what),
                        event.envelope.group, event.envelope.sequence, event.envelope.step, event.bytes);
  }
  log_ += '\n';
}

Ledger LocalNetwork::Net::ledger() const {
  const std::lock_guard guard(lock_);
  Ledger all;
  for (const auto& rank : ranks_) all.merge(rank->ledger);
  return all;
}

std::string LocalNetwork::Net::event_log() const {
  const std::lock_guard guard(lock_);
  return log_;
}

}  // namespace cairn::comm
