#include "base/tensorboard.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/process.h"

// Records are framed as TFRecord does (length, its masked CRC, bytes, their masked CRC) and hold the protobuf message
// `tensorflow.Event`; the few fields used are written by hand. Numbers are the field numbers of event.proto and summary.proto.
namespace cairn::base {
namespace {

static_assert(std::endian::native == std::endian::little, "the encoder copies little-endian numbers");

enum Wire : uint32_t { varint_wire = 0, fixed64_wire = 1, bytes_wire = 2, fixed32_wire = 5 };

template <typename T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_tag(std::string& out, uint32_t field, Wire wire) { put_varint(out, field << 3 | wire); }
void put_number(std::string& out, uint32_t field, uint64_t value) { put_tag(out, field, varint_wire), put_varint(out, value); }
void put_double(std::string& out, uint32_t field, double value) { put_tag(out, field, fixed64_wire), put_raw(out, value); }
void put_float(std::string& out, uint32_t field, float value) { put_tag(out, field, fixed32_wire), put_raw(out, value); }
void put_bytes(std::string& out, uint32_t field, std::string_view value) {
  put_tag(out, field, bytes_wire);
  put_varint(out, value.size());
  out += value;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(as_bytes(bytes));
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

std::string framed(const std::string& message) {
  std::string record;
  put_raw(record, static_cast<uint64_t>(message.size()));
  put_raw(record, masked_crc(record));
  record += message;
  put_raw(record, masked_crc(message));
  return record;
}

std::string event(int64_t step, std::string_view value) {
  std::string summary, out;
  put_bytes(summary, 1, value);
  put_double(out, 1, wall_time());
  put_number(out, 2, static_cast<uint64_t>(step));
  put_bytes(out, 5, summary);
  return framed(out);
}

// What TensorBoard expects first in a file.
std::string version_record() {
  std::string version;
  put_double(version, 1, wall_time());
  put_bytes(version, 3, "brain.Event:2");
  return framed(version);
}

std::filesystem::path event_path(const std::filesystem::path& folder) {
  std::string host = host_name();
  std::replace(host.begin(), host.end(), '/', '-');
  make_folder(folder);
  // Two runs begun in one second must not write into one file.
  const auto start = static_cast<int64_t>(wall_time());
  std::filesystem::path path = folder / fmt::format("events.out.tfevents.{}.{}", start, host);
  for (int copy = 1; std::filesystem::exists(path); ++copy) path = folder / fmt::format("events.out.tfevents.{}.{}.{}", start, host, copy);
  return path;
}

// Walks one protobuf message; every length is checked against what is there.
class Fields {
 public:
  explicit Fields(std::string_view rest) : rest_(rest) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case varint_wire:
        number = varint();
        break;
      case fixed64_wire:
        bytes = take(8);
        break;
      case bytes_wire:
        bytes = take(varint());
        break;
      case fixed32_wire:
        bytes = take(4);
        break;
      default:
        throw Error(Error::Kind::corrupt_file, "an event has an unknown wire type");
    }
    return true;
  }

  uint32_t field = 0;
  uint64_t number = 0;
  std::string_view bytes;

  template <typename T>
  T as() const {
    if (bytes.size() != sizeof(T)) throw Error(Error::Kind::corrupt_file, "an event field has the wrong size");
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

 private:
  std::string_view take(uint64_t length) {
    if (length > rest_.size()) throw Error(Error::Kind::corrupt_file, "an event field is cut off");
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw Error(Error::Kind::corrupt_file, "an event has an endless number");
  }

  std::string_view rest_;
};

void read_value(std::string_view message, TensorBoardEvent event, std::vector<TensorBoardEvent>& events) {
  for (Fields value(message); value.next();) {
    if (value.field == 1) event.tag = value.bytes;
    if (value.field == 2) event.scalar = value.as<float>();
    if (value.field == 8)
      for (Fields tensor(value.bytes); tensor.next();)
        if (tensor.field == 8) event.text = std::string(tensor.bytes);
  }
  events.push_back(std::move(event));
}

void read_event(std::string_view message, std::vector<TensorBoardEvent>& events) {
  TensorBoardEvent event;
  std::vector<std::string_view> summaries;
  for (Fields fields(message); fields.next();) {
    if (fields.field == 1) event.wall_time = fields.as<double>();
    if (fields.field == 2) event.step = static_cast<int64_t>(fields.number);
    if (fields.field == 5) summaries.push_back(fields.bytes);
  }
  for (const std::string_view summary : summaries)
    for (Fields values(summary); values.next();)
      if (values.field == 1) read_value(values.bytes, event, events);
}

}  // namespace

TensorBoard::TensorBoard(const std::filesystem::path& folder, const Disk& disk, LogFile::Warn warn)
    : file_(event_path(folder), disk, std::move(warn), version_record()) {
  file_.append({});
}

void TensorBoard::scalar(std::string_view tag, int64_t step, double value) {
  std::string message;
  put_bytes(message, 1, tag);
  put_float(message, 2, static_cast<float>(value));
  const std::lock_guard lock(mutex_);
  file_.append(as_bytes(event(step, message)));
}

void TensorBoard::text(std::string_view tag, int64_t step, std::string_view markdown) {
  std::string dim, shape, tensor, plugin, metadata, message;
  put_number(dim, 1, 1);
  put_bytes(shape, 2, dim);
  put_number(tensor, 1, 7);  // DT_STRING
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, markdown);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_number(metadata, 4, 2);  // DATA_CLASS_TENSOR
  put_bytes(message, 1, tag);
  put_bytes(message, 8, tensor);
  put_bytes(message, 9, metadata);
  const std::lock_guard lock(mutex_);
  file_.append(as_bytes(event(step, message)));
}

std::vector<TensorBoardEvent> read_tensorboard(const std::filesystem::path& path) {
  constexpr int64_t kBytesMax = int64_t{1} << 30;
  const std::string file = read_file(path, kBytesMax);
  std::vector<TensorBoardEvent> events;
  std::string_view rest = file;
  const auto damaged = [&](const char* what) {
    throw Error(Error::Kind::corrupt_file, fmt::format("{}: {} at byte {}", path.string(), what, file.size() - rest.size()));
  };
  while (!rest.empty()) {
    if (rest.size() < 12) damaged("a record is cut off");
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, rest.data(), 8);
    std::memcpy(&crc, rest.data() + 8, 4);
    if (crc != masked_crc(rest.substr(0, 8))) damaged("the checksum of a record's length is wrong");
    if (rest.size() < 16 || length > rest.size() - 16) damaged("a record is cut off");
    const std::string_view message = rest.substr(12, length);
    std::memcpy(&crc, rest.data() + 12 + length, 4);
    if (crc != masked_crc(message)) damaged("the checksum of a record is wrong");
    read_event(message, events);
    rest.remove_prefix(16 + length);
  }
  return events;
}

}  // namespace cairn::base
