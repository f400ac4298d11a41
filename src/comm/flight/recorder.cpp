#include "comm/flight/recorder.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace cairn::comm {
namespace {

template <size_t n>
void put_text(std::array<FlightWord, n>& words, std::string_view text) {
  std::array<uint64_t, n> plain{};
  std::memcpy(plain.data(), text.data(), std::min(text.size(), sizeof plain - 1));
  for (size_t i = 0; i < n; ++i) words[i].store(plain[i], std::memory_order_relaxed);
}

uint64_t stamp_time(std::chrono::nanoseconds time) { return static_cast<uint64_t>(time.count()) + 1; }

}  // namespace

std::shared_ptr<FlightMemory> make_flight_memory() {
  void* memory = ::mmap(nullptr, sizeof(FlightMemory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<FlightMemory*>(memory), [](FlightMemory* one) { ::munmap(one, sizeof(FlightMemory)); }};
}

std::chrono::nanoseconds machine_time() { return std::chrono::steady_clock::now().time_since_epoch(); }

FlightRecorder::FlightRecorder(std::shared_ptr<FlightMemory> memory, const base::Clock& clock, Nanoseconds epoch, int rank, int size)
    : memory_(std::move(memory)), clock_(clock) {
  put(memory_->rank, static_cast<uint64_t>(rank));
  put(memory_->size, static_cast<uint64_t>(size));
  put(memory_->process, static_cast<uint64_t>(::getpid()));
  put(memory_->epoch, static_cast<uint64_t>(epoch.count()));
  activity_since_ = clock_.now();
  put(memory_->activity_since, stamp_time(activity_since_));
  memory_->attached.store(1, std::memory_order_release);
}

void FlightRecorder::add_group(uint64_t id, std::string_view name, const std::vector<int>& ranks) {
  const uint64_t known = memory_->groups_known.load(std::memory_order_relaxed);
  const uint64_t used = memory_->members_used.load(std::memory_order_relaxed);
  if (known >= kFlightGroups || used + ranks.size() > kFlightMembers) return add(memory_->groups_missed, 1);
  FlightGroupEntry& entry = memory_->groups[known];
  put(entry.id, id);
  put(entry.first, used);
  put(entry.size, ranks.size());
  put_text(entry.name, name);
  for (size_t i = 0; i < ranks.size(); ++i) memory_->members[used + i].store(ranks[i], std::memory_order_relaxed);
  put(memory_->members_used, used + ranks.size());
  memory_->groups_known.store(known + 1, std::memory_order_release);
  groups_.emplace(id, &entry);
}

void FlightRecorder::name_group(const std::vector<int>& ranks, std::string_view name) {
  for (const auto& [id, entry] : groups_) {
    const uint64_t first = entry->first.load(std::memory_order_relaxed);
    bool same = entry->size.load(std::memory_order_relaxed) == ranks.size() && entry->name[0].load(std::memory_order_relaxed) == 0;
    for (size_t i = 0; same && i < ranks.size(); ++i) same = memory_->members[first + i].load(std::memory_order_relaxed) == ranks[i];
    if (same) put_text(entry->name, name);
  }
}

void FlightRecorder::set_host(std::string_view host) { put_text(memory_->host, host); }
void FlightRecorder::set_run(std::string_view directory) { put_text(memory_->run, directory); }

void FlightRecorder::set_in_memory(int peer) {
  if (in_memory_.size() <= static_cast<size_t>(peer)) in_memory_.resize(static_cast<size_t>(peer) + 1);
  in_memory_[static_cast<size_t>(peer)] = true;
}

uint64_t FlightRecorder::begin_operation(const Envelope& envelope, Purpose purpose, int64_t bytes, int peer, bool sends, Nanoseconds now) {
  const uint64_t number = memory_->operations_begun.load(std::memory_order_relaxed);
  FlightOperationEntry& entry = memory_->operations[number % kFlightOperations];
  put(entry.stamp, 0);
  std::atomic_thread_fence(std::memory_order_release);
  const bool collective = envelope.signature.kind != OperationKind::send_recv;
  const uint64_t id = envelope.group & ~uint64_t{1};
  put(entry.group, id);
  put(entry.sequence, envelope.sequence);
  put(entry.what, static_cast<uint64_t>(envelope.signature.kind) | static_cast<uint64_t>(envelope.signature.dtype) << 8 |
                      static_cast<uint64_t>(purpose) << 16 | static_cast<uint64_t>(activity_) << 24 | uint64_t{sends} << 32 |
                      static_cast<uint64_t>(peer + 1) << 40);
  put(entry.bytes, static_cast<uint64_t>(bytes));
  put(entry.entered, stamp_time(now));
  for (FlightWord* word : {&entry.started, &entry.ended, &entry.waited, &entry.failed}) put(*word, 0);
  put_text(entry.label, envelope.what);
  entry.stamp.store(number + 1, std::memory_order_release);
  if (const auto group = groups_.find(id); collective && group != groups_.end())
    group->second->next_sequence.store(envelope.sequence + 1, std::memory_order_release);
  memory_->operations_begun.store(number + 1, std::memory_order_release);
  return number;
}

FlightOperationEntry* FlightRecorder::entry(uint64_t operation) {
  FlightOperationEntry& entry = memory_->operations[operation % kFlightOperations];
  return entry.stamp.load(std::memory_order_relaxed) == operation + 1 ? &entry : nullptr;  // null: many operations later
}

void FlightRecorder::end_operation(uint64_t operation, bool failed) {
  FlightOperationEntry* const one = entry(operation);
  if (!one) return;
  if (failed) put(one->failed, 1);
  one->ended.store(stamp_time(clock_.now()), std::memory_order_release);
}

void FlightRecorder::begin_wait(uint64_t operation) {
  wait_since_ = clock_.now();
  put(memory_->waiting_since, stamp_time(wait_since_));
  memory_->waiting.store(operation + 1, std::memory_order_release);
}

void FlightRecorder::still_waiting() { put(memory_->wait_seen, stamp_time(clock_.now())); }

void FlightRecorder::end_wait(uint64_t operation, bool failed) {
  const Nanoseconds waited = clock_.now() - wait_since_;
  waited_ += waited;
  put(memory_->waited, static_cast<uint64_t>(waited_.count()));
  if (FlightOperationEntry* const one = entry(operation)) add(one->waited, static_cast<uint64_t>(waited.count()));
  if (!failed) memory_->waiting.store(0, std::memory_order_release);
}

void FlightRecorder::posted(Transfer& transfer, int64_t bytes, uint64_t operation, Nanoseconds begun) {
  FlightPeerEntry* const to = peer(transfer.peer);
  transfer.flight = {this, operation, bytes, begun};
  if (!to) return;
  if (transfer.outgoing) {
    add(to->posted_bytes, static_cast<uint64_t>(bytes));
    add(to->sending, 1);
  } else {
    add(to->awaited, 1);
  }
}

void FlightRecorder::finished(const Transfer& transfer) {
  const Nanoseconds now = clock_.now();
  if (!transfer.outgoing) {
    FlightOperationEntry* const one = entry(transfer.flight.operation);
    if (one && one->started.load(std::memory_order_relaxed) == 0) put(one->started, stamp_time(now));
  }
  FlightPeerEntry* const to = peer(transfer.peer);
  if (!to) return;
  add(transfer.outgoing ? to->sending : to->awaited, ~uint64_t{0});  // one less
  if (transfer.error || transfer.cancelled) return;
  put(to->last_progress, stamp_time(now));
  if (!transfer.outgoing) {
    add(to->received_bytes, static_cast<uint64_t>(transfer.flight.bytes));
    add(to->receive_wait, static_cast<uint64_t>((now - transfer.flight.posted).count()));
    return;
  }
  add(to->completed_bytes, static_cast<uint64_t>(transfer.flight.bytes));
  add(to->messages, 1);
  add_message(transfer.peer, transfer.flight.bytes, transfer.flight.posted, now);
}

void FlightRecorder::add_message(int peer, int64_t bytes, Nanoseconds begun, Nanoseconds now) {
  if (static_cast<size_t>(peer) < in_memory_.size() && in_memory_[static_cast<size_t>(peer)]) return;
  Nanoseconds& last = last_sent_[peer];  // messages of a pair follow each other: none is blamed for the one before it
  const Nanoseconds from = std::max(begun, last);
  last = now;
  const uint64_t number = memory_->messages_ended.load(std::memory_order_relaxed);
  FlightMessageEntry& entry = memory_->messages[number % kFlightMessages];
  put(entry.stamp, 0);
  std::atomic_thread_fence(std::memory_order_release);
  put(entry.peer, static_cast<uint64_t>(peer));
  put(entry.bytes, static_cast<uint64_t>(bytes));
  put(entry.ended, stamp_time(now));
  put(entry.service, static_cast<uint64_t>((now - from).count()));
  entry.stamp.store(number + 1, std::memory_order_release);
  memory_->messages_ended.store(number + 1, std::memory_order_release);
}

void FlightRecorder::begin_step(int64_t step) {
  const uint64_t number = memory_->steps_begun.load(std::memory_order_relaxed);
  FlightStepEntry& entry = memory_->steps[number % kFlightSteps];
  put(entry.stamp, 0);
  std::atomic_thread_fence(std::memory_order_release);
  put(entry.step, static_cast<uint64_t>(step));
  put(entry.begun, stamp_time(clock_.now()));
  for (FlightWord* word : {&entry.ended, &entry.waited, &entry.loading}) put(*word, 0);
  entry.stamp.store(number + 1, std::memory_order_release);
  memory_->steps_begun.store(number + 1, std::memory_order_release);
  put(memory_->step, static_cast<uint64_t>(step));
  waited_at_step_ = waited_;
  loading_at_step_ = loading_;
}

void FlightRecorder::end_step() {
  const uint64_t begun = memory_->steps_begun.load(std::memory_order_relaxed);
  if (begun == 0) return;
  FlightStepEntry& entry = memory_->steps[(begun - 1) % kFlightSteps];
  put(entry.waited, static_cast<uint64_t>((waited_ - waited_at_step_).count()));
  put(entry.loading, static_cast<uint64_t>((loading_ - loading_at_step_).count()));
  entry.ended.store(stamp_time(clock_.now()), std::memory_order_release);
}

void FlightRecorder::set_activity(Activity activity) {
  const Nanoseconds now = clock_.now();
  if (activity_ == Activity::loading) loading_ += now - activity_since_;
  activity_ = activity;
  activity_since_ = now;
  put(memory_->loading, static_cast<uint64_t>(loading_.count()));
  put(memory_->activity, static_cast<uint64_t>(activity));
  memory_->activity_since.store(stamp_time(now), std::memory_order_release);
}

}  // namespace cairn::comm
