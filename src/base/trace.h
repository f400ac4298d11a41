#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/disk.h"

namespace cairn::base {

class Clock;

// A span of time on one rank. Trace viewers show `args` beside it.
struct TraceEvent {
  std::string name, category;
  std::chrono::nanoseconds begin{0}, length{0};
  int thread = 0;  // set by the trace: small numbers in order of first use
  std::vector<std::pair<std::string, std::variant<int64_t, double, std::string>>> args;
};

// What a rank did when: named spans in a bounded buffer. When it is full the oldest are dropped and counted. Thread-safe.
class Trace {
 public:
  static constexpr int64_t kEventsMax = 200'000;
  Trace(const Clock& clock, int rank, int64_t events_max = kEventsMax);  // 0: off. The clock must outlive the trace

  // RAII: the span lasts as long as the object. `auto forward = trace.span("forward", "compute");`
  class Span {
   public:
    Span(Span&& other) noexcept : trace_(std::exchange(other.trace_, nullptr)), event_(std::move(other.event_)) {}
    Span& operator=(Span&&) = delete;
    ~Span();
    Span& arg(std::string name, std::variant<int64_t, double, std::string> value);

   private:
    friend class Trace;
    Span(Trace* trace, TraceEvent event) : trace_(trace), event_(std::move(event)) {}
    Trace* trace_;  // null: moved from, or off
    TraceEvent event_;
  };
  [[nodiscard]] Span span(std::string_view name, std::string_view category = "");

  // A span measured elsewhere, on this trace's clock.
  void add(TraceEvent event);

  int rank() const { return rank_; }
  int64_t dropped() const;
  std::vector<TraceEvent> events() const;

  // Chrome trace format, as ui.perfetto.dev and chrome://tracing read it: one process per rank.
  void write_perfetto(const std::filesystem::path& path, const Disk& disk = real_disk()) const;

 private:
  int thread_number();  // under the lock

  const Clock& clock_;
  int rank_;
  int64_t events_max_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  size_t oldest_ = 0;  // once full, events_ is a ring that starts here
  std::vector<std::thread::id> threads_;
  int64_t dropped_ = 0;
};

// Traces of several ranks in one file, from memory or from the files that ranks wrote. Times are not shifted: all ranks are taken to share
// one start.
void write_perfetto(const std::filesystem::path& path, const std::vector<const Trace*>& traces, const Disk& disk = real_disk());
void merge_perfetto(const std::filesystem::path& path, const std::vector<std::filesystem::path>& parts, const Disk& disk = real_disk());

}  // namespace cairn::base
