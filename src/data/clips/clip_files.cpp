// Clips in files. The folder data.path holds
//
//   clips.npy    NumPy's format, version 1 or 2: uint8 [clips, frames, height, width] in C order, grey values
//   labels.csv   one class on each line, from 0, as many as clips
//
// Both come from outside: sizes are checked against the length of the file before anything is read.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/random/permutation.h"
#include "data/clips/clip_frames.h"
#include "data/clips/options.h"
#include "data/label_file.h"
#include "data/npy.h"

namespace cairn::data {
namespace {

constexpr std::string_view kClipTypes[] = {"|u1"};
constexpr const char* kClipsWanted = "Write it with numpy.save, as uint8 [clips, frames, height, width].";

// Clips are numbered in an order drawn once, so that any range of them is a fair sample of the file.
class ClipFiles final : public ClipFrames {
 public:
  ClipFiles(NpyArray array, std::vector<int64_t> labels)
      : array_(std::move(array)),
        labels_(std::move(labels)),
        order_(static_cast<uint64_t>(array_.extents[0]), base::Random(1).for_purpose("clips.order")) {}

  int64_t clips() const override { return array_.extents[0]; }
  int64_t frames() const override { return array_.extents[1]; }
  int64_t height() const override { return array_.extents[2]; }
  int64_t width() const override { return array_.extents[3]; }
  int64_t label(int64_t clip) const override { return labels_[order_.at(static_cast<uint64_t>(clip))]; }

  // Of the labels, the shape, and some parts of the values: all of them may take minutes to read.
  uint64_t digest() const override {
    constexpr size_t kParts = 64, kPartBytes = 4096;
    base::Checksum sum;
    sum.add(std::as_bytes(std::span(labels_)));
    sum.add(std::as_bytes(std::span(array_.extents)));
    const std::span<const std::byte> values = array_.values;
    for (size_t i = 0; i < kParts; ++i) {
      const size_t at = values.size() / kParts * i;
      sum.add(values.subspan(at, std::min(kPartBytes, values.size() - at)));
    }
    return sum.value();
  }

  const uint8_t* frame(int64_t clip, int64_t frame, std::vector<uint8_t>&) const override {
    const auto at = static_cast<int64_t>(order_.at(static_cast<uint64_t>(clip))) * frames() + frame;
    return reinterpret_cast<const uint8_t*>(array_.values.data()) + at * height() * width();
  }

 private:
  NpyArray array_;
  std::vector<int64_t> labels_;
  base::Permutation order_;
};

}  // namespace

std::unique_ptr<ClipFrames> open_clip_files(const std::string& path, const ClipOptions& options) {
  const std::string clips = (std::filesystem::path(path) / "clips.npy").string(),
                    labels = (std::filesystem::path(path) / "labels.csv").string();
  NpyArray array = open_npy(clips, kClipTypes, kClipsWanted);
  if (array.extents.size() != 4) base::fail_input("{}: it has {} dims. {}", clips, array.extents.size(), kClipsWanted);
  const int64_t count = array.extents[0], frames = array.extents[1], height = array.extents[2], width = array.extents[3];
  if (frames < options.frames)
    base::fail_input("clips.frames = {}: the clips in {} have {}. Use at most that.", options.frames, clips, frames);
  if (const int64_t side = std::min(height, width); side < options.size)
    base::fail_input("clips.size = {}: the frames in {} have {} x {} pixels. Use at most {}.", options.size, clips, height, width, side);
  return std::make_unique<ClipFiles>(std::move(array), read_label_file(labels, count, options.classes, "clips"));
}

}  // namespace cairn::data
