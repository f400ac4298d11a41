#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/disk.h"

namespace cairn::base {

class Clock;

// A span of time on one rank.
struct TraceEvent {
  std::string name, category;
  std::chrono::nanoseconds begin{0}, length{0};
  int thread = 0;  // set by the trace: small numbers in order of first use
};

// What a rank did when: named spans in a buffer that is allocated at the start, so that a long run's memory does not grow. When it is full
// the oldest are dropped and counted. Thread-safe.
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

 private:
  // 24 bytes an event: names are numbers into names_.
  struct Stored {
    int64_t begin_ns, length_ns;
    uint32_t name;
    uint16_t category, thread;
  };
  uint32_t number_of(std::string_view name);  // under the lock
  uint16_t thread_number();                   // under the lock

  const Clock& clock_;
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Stored> ring_;
  int64_t added_ = 0;  // event i is in ring_[i % ring_.size()]
  std::vector<std::string> names_;
  std::map<std::string, uint32_t, std::less<>> numbers_;
  std::vector<std::thread::id> threads_;
};

// A trace file in Chrome's format, as ui.perfetto.dev and chrome://tracing read it: one process per rank. It appears with commit(). Times
// are not shifted: all ranks are taken to share one start.
class PerfettoFile {
 public:
  explicit PerfettoFile(const std::filesystem::path& path, const Disk& disk = real_disk());
  ~PerfettoFile();
  void add(const Trace& trace);
  // The events of another file, as text: `origin` names it in errors. Throws corrupt_file.
  void add(std::string_view json, std::string_view origin);
  void commit();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

// The file of one trace, as text.
std::string perfetto_json(const Trace& trace);

}  // namespace cairn::base
