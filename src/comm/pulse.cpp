#include "comm/pulse.h"

namespace cairn::comm {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);

}  // namespace

Pulse::Pulse(Board& own)
    : thread_([this, &own] {
        std::unique_lock guard(lock_);
        do {
          own.beat.fetch_add(1, std::memory_order_relaxed);
        } while (!stop_.wait_for(guard, kInterval, [this] { return stopping_; }));
      }) {}

Pulse::~Pulse() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void PulseWatch::begin(Nanoseconds now) {
  anew_ = now - last_look_ > kPauseMax;
  last_look_ = now;
}

PulseWatch::Nanoseconds PulseWatch::silent(int rank, const Board& board, Nanoseconds now) {
  Seen& seen = seen_[static_cast<size_t>(rank)];
  const uint64_t beat = board.beat.load(std::memory_order_relaxed);
  if (anew_ || beat != seen.beat) seen = {beat, now};
  return now - seen.at;
}

}  // namespace cairn::comm
