// Clips in files. The folder data.path holds
//
//   clips.npy    NumPy's format, version 1 or 2: uint8 [clips, frames, height, width] in C order, grey values
//   labels.csv   one class on each line, from 0, as many as clips
//
// Both come from outside: sizes are checked against the length of the file before anything is read.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/mapped_file.h"
#include "base/random/permutation.h"
#include "data/clips/clip_frames.h"
#include "data/clips/options.h"

namespace cairn::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kHeaderBytesMax = 1 << 16, kLabelBytesMax = int64_t{1} << 30;
constexpr const char* kWanted = "Write it with numpy.save, as uint8 [clips, frames, height, width].";

struct NpyShape {
  std::array<int64_t, 4> extents{};
  int64_t data_offset = 0;
};

[[noreturn]] void fail_clips(const std::string& path, const std::string& wrong) { base::fail_input("{}: {}. {}", path, wrong, kWanted); }

// The text after `'key':` of the header, which is the text of a Python dict.
std::string_view header_value(const std::string& path, std::string_view header, std::string_view key) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) fail_clips(path, fmt::format("its header has no {}", key));
  std::string_view rest = header.substr(at + key.size() + 3);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

// "(100, 16, 32, 32), ..."
std::array<int64_t, 4> parse_extents(const std::string& path, std::string_view text) {
  const size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) fail_clips(path, "its header has no shape");
  text = text.substr(1, end - 1);
  std::array<int64_t, 4> extents{};
  size_t count = 0;
  while (!text.empty()) {
    while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
    if (text.empty()) break;
    int64_t value = 0;
    const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 1 || count == extents.size()) fail_clips(path, "its shape is not that of clips");
    extents[count++] = value;
    text.remove_prefix(static_cast<size_t>(after - text.data()));
  }
  if (count != extents.size()) fail_clips(path, fmt::format("it has {} dims", count));
  return extents;
}

NpyShape parse_npy(const std::string& path, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 12 || !text.starts_with(kMagic)) fail_clips(path, "is not a NumPy file");
  const auto byte = [&](size_t i) { return static_cast<int64_t>(std::to_integer<uint8_t>(bytes[i])); };
  if (byte(6) != 1 && byte(6) != 2) fail_clips(path, fmt::format("has version {} of the format", byte(6)));
  const bool first = byte(6) == 1;
  const int64_t begin = first ? 10 : 12;
  const int64_t length = first ? byte(8) + (byte(9) << 8) : byte(8) + (byte(9) << 8) + (byte(10) << 16) + (byte(11) << 24);
  if (length > kHeaderBytesMax || begin + length > static_cast<int64_t>(text.size())) fail_clips(path, "ends within its header");
  const std::string_view header = text.substr(static_cast<size_t>(begin), static_cast<size_t>(length));
  if (!header_value(path, header, "descr").starts_with("'|u1'")) fail_clips(path, "does not hold uint8");
  if (!header_value(path, header, "fortran_order").starts_with("False")) fail_clips(path, "is in Fortran's order");
  NpyShape shape{.extents = parse_extents(path, header_value(path, header, "shape")), .data_offset = begin + length};
  int64_t elements = 1;
  for (const int64_t extent : shape.extents)
    if (__builtin_mul_overflow(elements, extent, &elements)) fail_clips(path, "its shape is too large");
  if (elements != static_cast<int64_t>(text.size()) - shape.data_offset)
    fail_clips(path, fmt::format("holds {} values, and its shape {}", static_cast<int64_t>(text.size()) - shape.data_offset, elements));
  return shape;
}

std::vector<int64_t> read_labels(const std::string& path, int64_t clips, int64_t classes) {
  const std::string text = base::read_file(path, kLabelBytesMax);
  std::vector<int64_t> labels;
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    int64_t label = -1;
    const auto [after, error] = std::from_chars(line.data(), line.data() + line.size(), label);
    if (error != std::errc() || after != line.data() + line.size() || label < 0 || label >= classes)
      base::fail_input("{}:{}: is no class from 0 to {} (clips.classes = {}). Write one class on each line.", path, number, classes - 1,
                       classes);
    labels.push_back(label);
  }
  if (static_cast<int64_t>(labels.size()) != clips)
    base::fail_input("{}: has {} classes for {} clips. Write one line for each clip.", path, labels.size(), clips);
  return labels;
}

// Clips are numbered in an order drawn once, so that any range of them is a fair sample of the file.
class ClipFiles final : public ClipFrames {
 public:
  ClipFiles(std::shared_ptr<const base::MappedFile> file, const NpyShape& shape, std::vector<int64_t> labels)
      : file_(std::move(file)),
        shape_(shape),
        labels_(std::move(labels)),
        order_(static_cast<uint64_t>(shape.extents[0]), base::Random(1).for_purpose("clips.order")) {}

  int64_t clips() const override { return shape_.extents[0]; }
  int64_t frames() const override { return shape_.extents[1]; }
  int64_t height() const override { return shape_.extents[2]; }
  int64_t width() const override { return shape_.extents[3]; }
  int64_t label(int64_t clip) const override { return labels_[order_.at(static_cast<uint64_t>(clip))]; }

  // Of the labels, the shape, and some parts of the values: all of them may take minutes to read.
  uint64_t digest() const override {
    constexpr size_t kParts = 64, kPartBytes = 4096;
    base::Checksum sum;
    sum.add(std::as_bytes(std::span(labels_)));
    sum.add(std::as_bytes(std::span(shape_.extents)));
    const std::span<const std::byte> values = file_->bytes().subspan(static_cast<size_t>(shape_.data_offset));
    for (size_t i = 0; i < kParts; ++i) {
      const size_t at = values.size() / kParts * i;
      sum.add(values.subspan(at, std::min(kPartBytes, values.size() - at)));
    }
    return sum.value();
  }

  const uint8_t* frame(int64_t clip, int64_t frame, std::vector<uint8_t>&) const override {
    const auto at = static_cast<int64_t>(order_.at(static_cast<uint64_t>(clip))) * frames() + frame;
    return reinterpret_cast<const uint8_t*>(file_->bytes().data()) + shape_.data_offset + at * height() * width();
  }

 private:
  std::shared_ptr<const base::MappedFile> file_;
  NpyShape shape_;
  std::vector<int64_t> labels_;
  base::Permutation order_;
};

}  // namespace

std::unique_ptr<ClipFrames> open_clip_files(const std::string& path, const ClipOptions& options) {
  const std::string clips = (std::filesystem::path(path) / "clips.npy").string(),
                    labels = (std::filesystem::path(path) / "labels.csv").string();
  auto file = base::MappedFile::open(clips, Error::Kind::bad_input);
  const NpyShape shape = parse_npy(clips, file->bytes());
  const auto& [count, frames, height, width] = shape.extents;
  if (frames < options.frames)
    base::fail_input("clips.frames = {}: the clips in {} have {}. Use at most that.", options.frames, clips, frames);
  if (const int64_t side = std::min(height, width); side < options.size)
    base::fail_input("clips.size = {}: the frames in {} have {} x {} pixels. Use at most {}.", options.size, clips, height, width, side);
  return std::make_unique<ClipFiles>(std::move(file), shape, read_labels(labels, count, options.classes));
}

}  // namespace cairn::data
