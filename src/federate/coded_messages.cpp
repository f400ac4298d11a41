#include "federate/coded_messages.h"

#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"

namespace cairn::federate {
namespace {

class Writer {
 public:
  template <typename T>
  Writer& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
    return *this;
  }
  template <typename T>
  Writer& put_all(std::span<const T> values) {
    put(static_cast<int64_t>(values.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + values.size_bytes());
    return *this;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Sizes are checked before anything is allocated.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  int64_t count(size_t bytes_each) {
    const auto n = get<int64_t>();
    if (n < 0 || static_cast<uint64_t>(n) > bytes_.size() / bytes_each) fail();
    return n;
  }
  template <typename T>
  std::vector<T> get_all() {
    const int64_t n = count(sizeof(T));
    std::vector<T> values(static_cast<size_t>(n));
    if (n > 0) std::memcpy(values.data(), next(values.size() * sizeof(T)).data(), values.size() * sizeof(T));
    return values;
  }
  void end() const {
    if (!bytes_.empty()) fail();
  }

 private:
  [[noreturn]] static void fail() { throw Error(Error::Kind::lost_peer, "a message of coded training is not what it should be"); }
  std::span<const std::byte> next(size_t bytes) {
    if (bytes > bytes_.size()) fail();
    const auto found = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return found;
  }
  std::span<const std::byte> bytes_;
};

Reader after_kind(std::span<const std::byte> message, WorkKind kind) {
  Reader reader(message);
  if (reader.get<WorkKind>() != kind) throw Error(Error::Kind::lost_peer, "a message of coded training is of another kind");
  return reader;
}

}  // namespace

std::string worker_node(int worker) { return fmt::format("worker-{}", worker); }

std::vector<std::byte> encode_weights(int64_t stream, std::span<const float> weights) {
  return Writer().put(WorkKind::weights).put(stream).put_all(weights).take();
}

std::vector<std::byte> encode(const TaskOrder& order) {
  Writer out;
  out.put(WorkKind::task).put(order.round).put(order.load).put(order.last_valid).put(order.forget).put(order.jobs_done);
  out.put(static_cast<int64_t>(order.slots.size()));
  for (const SlotOrder& slot : order.slots)
    out.put(slot.job).put(slot.stream).put(slot.step).put(slot.group).put(slot.send_total).put_all(std::span(slot.ranges));
  return out.take();
}

std::vector<std::byte> encode_cancel(int64_t round) { return Writer().put(WorkKind::cancel).put(round).take(); }
std::vector<std::byte> encode_stop() { return Writer().put(WorkKind::stop).take(); }

std::vector<std::byte> encode(const TaskReply& reply) {
  Writer out;
  out.put(reply.round).put(reply.worker).put(reply.samples).put(static_cast<int64_t>(reply.slots.size()));
  for (const SlotReply& slot : reply.slots) {
    out.put(slot.job).put(slot.group).put(static_cast<int64_t>(slot.losses.size()));
    for (const auto& [chunk, loss] : slot.losses) out.put(chunk).put(loss);
    out.put_all(std::span(slot.gradient));
  }
  return out.take();
}

WorkKind kind_of(std::span<const std::byte> message) { return Reader(message).get<WorkKind>(); }

std::pair<int64_t, std::vector<float>> decode_weights(std::span<const std::byte> message) {
  Reader in = after_kind(message, WorkKind::weights);
  const auto stream = in.get<int64_t>();
  std::pair<int64_t, std::vector<float>> found{stream, in.get_all<float>()};
  in.end();
  return found;
}

TaskOrder decode_order(std::span<const std::byte> message) {
  Reader in = after_kind(message, WorkKind::task);
  TaskOrder order;
  order.round = in.get<int64_t>();
  order.load = in.get<double>();
  order.last_valid = in.get<bool>();
  order.forget = in.get<bool>();
  order.jobs_done = in.get<int64_t>();
  order.slots.resize(static_cast<size_t>(in.count(4 * sizeof(int64_t))));
  for (SlotOrder& slot : order.slots) {
    slot.job = in.get<int64_t>();
    slot.stream = in.get<int64_t>();
    slot.step = in.get<int64_t>();
    slot.group = in.get<int64_t>();
    slot.send_total = in.get<bool>();
    slot.ranges = in.get_all<SampleRange>();
  }
  in.end();
  return order;
}

int64_t decode_cancel(std::span<const std::byte> message) { return after_kind(message, WorkKind::cancel).get<int64_t>(); }

TaskReply decode_reply(std::span<const std::byte> message) {
  Reader in(message);
  TaskReply reply;
  reply.round = in.get<int64_t>();
  reply.worker = in.get<int64_t>();
  reply.samples = in.get<int64_t>();
  reply.slots.resize(static_cast<size_t>(in.count(2 * sizeof(int64_t))));
  for (SlotReply& slot : reply.slots) {
    slot.job = in.get<int64_t>();
    slot.group = in.get<int64_t>();
    slot.losses.resize(static_cast<size_t>(in.count(sizeof(int64_t) + sizeof(double))));
    for (auto& [chunk, loss] : slot.losses) {
      chunk = in.get<int64_t>();
      loss = in.get<double>();
    }
    slot.gradient = in.get_all<float>();
  }
  in.end();
  return reply;
}

}  // namespace cairn::federate
