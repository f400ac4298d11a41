#include "base/trace.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::base {
namespace {

// Chrome's "complete" event; times in microseconds.
OrderedJson to_json(const TraceEvent& event, int rank) {
  OrderedJson json;
  json["name"] = event.name;
  json["ph"] = "X";
  json["ts"] = event.begin.count() / 1e3;
  json["dur"] = event.length.count() / 1e3;
  json["pid"] = rank;
  json["tid"] = event.thread;
  if (!event.category.empty()) json["cat"] = event.category;
  return json;
}

OrderedJson process_name(int rank, int64_t dropped) {
  const std::string name = dropped == 0 ? fmt::format("rank {}", rank) : fmt::format("rank {} ({} older events dropped)", rank, dropped);
  OrderedJson json;
  json["name"] = "process_name";
  json["ph"] = "M";
  json["pid"] = rank;
  json["args"]["name"] = name;
  return json;
}

}  // namespace

Trace::Trace(const Clock& clock, int rank, int64_t events_max) : clock_(clock), rank_(rank), ring_(static_cast<size_t>(events_max)) {}

Trace::Span Trace::span(std::string_view name, std::string_view category) {
  if (ring_.empty()) return {nullptr, {}};
  TraceEvent event;
  event.name = name;
  event.category = category;
  event.begin = clock_.now();
  return {this, std::move(event)};
}

Trace::Span::~Span() {
  if (trace_ == nullptr) return;
  event_.length = trace_->clock_.now() - event_.begin;
  try {
    trace_->add(std::move(event_));
  } catch (const std::bad_alloc&) {  // a span lost, not the run
  }
}

// Threads that come and go share the last number, so that the list stays short.
uint16_t Trace::thread_number() {
  constexpr size_t kThreadsMax = 256;
  const auto self = std::this_thread::get_id();
  const auto at = std::find(threads_.begin(), threads_.end(), self);
  if (at != threads_.end()) return static_cast<uint16_t>(at - threads_.begin());
  if (threads_.size() < kThreadsMax) threads_.push_back(self);
  return static_cast<uint16_t>(threads_.size() - 1);
}

// Names are few. A program that makes up endless ones gets a common name for those after the first 10,000.
uint32_t Trace::number_of(std::string_view name) {
  constexpr size_t kNamesMax = 10'000;
  if (const auto found = numbers_.find(name); found != numbers_.end()) return found->second;
  if (names_.size() >= kNamesMax) name = "(other)";
  const auto [at, is_new] = numbers_.try_emplace(std::string(name), static_cast<uint32_t>(names_.size()));
  if (is_new) names_.emplace_back(name);
  return at->second;
}

void Trace::add(TraceEvent event) {
  if (ring_.empty()) return;
  const std::lock_guard lock(mutex_);
  ring_[static_cast<size_t>(added_) % ring_.size()] = {.begin_ns = event.begin.count(),
                                                       .length_ns = event.length.count(),
                                                       .name = number_of(event.name),
                                                       .category = static_cast<uint16_t>(number_of(event.category)),
                                                       .thread = thread_number()};
  ++added_;
}

int64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return std::max<int64_t>(added_ - static_cast<int64_t>(ring_.size()), 0);
}

std::vector<TraceEvent> Trace::events() const {
  const std::lock_guard lock(mutex_);
  std::vector<TraceEvent> ordered;
  for (int64_t i = std::max<int64_t>(added_ - static_cast<int64_t>(ring_.size()), 0); i < added_; ++i) {
    const Stored& one = ring_[static_cast<size_t>(i) % ring_.size()];
    ordered.push_back({.name = names_[one.name],
                       .category = names_[one.category],
                       .begin = std::chrono::nanoseconds(one.begin_ns),
                       .length = std::chrono::nanoseconds(one.length_ns),
                       .thread = one.thread});
  }
  return ordered;
}

namespace {

// Events one per line, handed on in pieces, so that memory stays small.
class EventList {
 public:
  explicit EventList(std::function<void(std::string_view)> sink) : sink_(std::move(sink)) {}

  void add(const OrderedJson& event) {
    buffer_ += first_ ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" : ",\n";
    first_ = false;
    buffer_ += compact(event);
    if (buffer_.size() > size_t{1} << 20) flush();
  }

  void add(const Trace& trace) {
    add(process_name(trace.rank(), trace.dropped()));
    for (const TraceEvent& event : trace.events()) add(to_json(event, trace.rank()));
  }

  void end() {
    buffer_ += first_ ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}\n" : "\n]}\n";
    flush();
  }

 private:
  void flush() {
    sink_(buffer_);
    buffer_.clear();
  }

  std::function<void(std::string_view)> sink_;
  std::string buffer_;
  bool first_ = true;
};

}  // namespace

struct PerfettoFile::Stream {
  Stream(const std::filesystem::path& path, const Disk& disk)
      : file(path, /*bytes_expected=*/0, disk), events([this](std::string_view text) { file.write(text); }) {}
  FileWriter file;
  EventList events;
};

PerfettoFile::PerfettoFile(const std::filesystem::path& path, const Disk& disk) : stream_(std::make_unique<Stream>(path, disk)) {}
PerfettoFile::~PerfettoFile() = default;

void PerfettoFile::add(const Trace& trace) { stream_->events.add(trace); }

void PerfettoFile::add(std::string_view json, std::string_view origin) {
  const OrderedJson parsed = parse_ordered_json(std::string(json));
  if (!parsed.is_object() || !parsed.contains("traceEvents") || !parsed["traceEvents"].is_array())
    throw Error(Error::Kind::corrupt_file, fmt::format("{}: not a trace (no list \"traceEvents\")", origin));
  for (const OrderedJson& event : parsed["traceEvents"]) stream_->events.add(event);
}

void PerfettoFile::commit() {
  stream_->events.end();
  stream_->file.commit();
}

std::string perfetto_json(const Trace& trace) {
  std::string text;
  EventList events([&](std::string_view piece) { text += piece; });
  events.add(trace);
  events.end();
  return text;
}

}  // namespace cairn::base
