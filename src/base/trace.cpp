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
  for (const auto& [name, value] : event.args) std::visit([&, &key = name](const auto& x) { json["args"][key] = x; }, value);
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

// The file as a stream of events, one per line, so that memory stays small.
class PerfettoWriter {
 public:
  PerfettoWriter(const std::filesystem::path& path, const Disk& disk) : file_(path, /*bytes_expected=*/0, disk) {}

  void add(const OrderedJson& event) {
    buffer_ += first_ ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" : ",\n";
    first_ = false;
    buffer_ += compact(event);
    if (buffer_.size() > size_t{1} << 20) flush();
  }

  void commit() {
    buffer_ += first_ ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}\n" : "\n]}\n";
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  FileWriter file_;
  std::string buffer_;
  bool first_ = true;
};

}  // namespace

Trace::Trace(const Clock& clock, int rank, int64_t events_max) : clock_(clock), rank_(rank), events_max_(events_max) {}

Trace::Span Trace::span(std::string_view name, std::string_view category) {
  if (events_max_ == 0) return {nullptr, {}};
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

Trace::Span& Trace::Span::arg(std::string name, std::variant<int64_t, double, std::string> value) {
  if (trace_ != nullptr) event_.args.emplace_back(std::move(name), std::move(value));
  return *this;
}

int Trace::thread_number() {
  const auto self = std::this_thread::get_id();
  const auto at = std::find(threads_.begin(), threads_.end(), self);
  if (at != threads_.end()) return static_cast<int>(at - threads_.begin());
  threads_.push_back(self);
  return static_cast<int>(threads_.size()) - 1;
}

void Trace::add(TraceEvent event) {
  if (events_max_ == 0) return;
  const std::lock_guard lock(mutex_);
  event.thread = thread_number();
  if (static_cast<int64_t>(events_.size()) < events_max_) {
    events_.push_back(std::move(event));
    return;
  }
  events_[oldest_] = std::move(event);
  oldest_ = (oldest_ + 1) % events_.size();
  ++dropped_;
}

int64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::vector<TraceEvent> Trace::events() const {
  const std::lock_guard lock(mutex_);
  std::vector<TraceEvent> ordered(events_.begin() + static_cast<int64_t>(oldest_), events_.end());
  ordered.insert(ordered.end(), events_.begin(), events_.begin() + static_cast<int64_t>(oldest_));
  return ordered;
}

void Trace::write_perfetto(const std::filesystem::path& path, const Disk& disk) const { base::write_perfetto(path, {this}, disk); }

void write_perfetto(const std::filesystem::path& path, const std::vector<const Trace*>& traces, const Disk& disk) {
  PerfettoWriter writer(path, disk);
  for (const Trace* trace : traces) {
    writer.add(process_name(trace->rank(), trace->dropped()));
    for (const TraceEvent& event : trace->events()) writer.add(to_json(event, trace->rank()));
  }
  writer.commit();
}

void merge_perfetto(const std::filesystem::path& path, const std::vector<std::filesystem::path>& parts, const Disk& disk) {
  constexpr int64_t kPartBytesMax = int64_t{1} << 30;
  PerfettoWriter writer(path, disk);
  for (const std::filesystem::path& part : parts) {
    const OrderedJson json = parse_ordered_json(read_file(part, kPartBytesMax));
    if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array())
      throw Error(Error::Kind::corrupt_file, fmt::format("{}: not a trace (no list \"traceEvents\")", part.string()));
    for (const OrderedJson& event : json["traceEvents"]) writer.add(event);
  }
  writer.commit();
}

}  // namespace cairn::base
