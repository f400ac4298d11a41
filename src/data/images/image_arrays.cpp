// Pictures in NumPy's format. The folder PATH holds
//
//   images.npy                  uint8 or float32: [images, height, width] or [images, height, width, channels]
//   labels.npy or labels.csv    one class for each, from 0: uint8, int32 or int64 [images]; or one on each line
//   test_images.npy, test_labels.npy or .csv    what is held out; without them the last eval.fraction of the first
//
// Bytes are scaled to -1 .. 1, numbers are used as they are. Sizes are checked against the length of the file before anything is read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/random/permutation.h"
#include "data/images/image_source.h"
#include "data/images/options.h"
#include "data/label_file.h"
#include "data/npy.h"

namespace cairn::data {
namespace {

constexpr std::string_view kImageTypes[] = {"|u1", "<f4"}, kImageLabelTypes[] = {"|u1", "<i4", "<i8"};
constexpr const char* kImagesWanted =
    "Write it with numpy.save, as uint8 or float32 [images, height, width] or [images, height, width, channels].";
constexpr const char* kImageLabelsWanted = "Write it with numpy.save, as int64 [images].";
constexpr int64_t kImageClassesMax = 100000;

std::string file_in(const std::string& folder, const std::string& name) { return (std::filesystem::path(folder) / name).string(); }

NpyArray open_images(const std::string& path, const ImageOptions& options) {
  NpyArray array = open_npy(path, kImageTypes, kImagesWanted);
  const size_t dims = array.extents.size();
  if (dims != 3 && dims != 4) base::fail_input("{}: it has {} dims. {}", path, dims, kImagesWanted);
  if (dims == 3) array.extents.push_back(1);
  if (array.extents[3] != options.channels)
    base::fail_input("images.channels = {}: the pictures in {} have {}. Set images.channels = {}.", options.channels, path,
                     array.extents[3], array.extents[3]);
  return array;
}

// `classes` 0: as many as the largest label asks for.
std::vector<int64_t> read_image_labels(const std::string& folder, const std::string& name, int64_t images, int64_t classes) {
  const std::string array_path = file_in(folder, name + ".npy");
  const int64_t bound = classes > 0 ? classes : kImageClassesMax;
  if (!base::path_exists(array_path)) return read_label_file(file_in(folder, name + ".csv"), images, bound, "images");
  const NpyArray array = open_npy(array_path, kImageLabelTypes, kImageLabelsWanted);
  if (array.extents != std::vector<int64_t>{images})
    base::fail_input("{}: has {} labels for {} images. {}", array_path, array.extents.front(), images, kImageLabelsWanted);
  std::vector<int64_t> labels(static_cast<size_t>(images));
  for (size_t i = 0; i < labels.size(); ++i) {
    if (array.type == "<i8") {
      std::memcpy(&labels[i], array.values.data() + i * 8, 8);
    } else if (array.type == "<i4") {
      int32_t narrow = 0;
      std::memcpy(&narrow, array.values.data() + i * 4, 4);
      labels[i] = narrow;
    } else {
      labels[i] = std::to_integer<uint8_t>(array.values[i]);
    }
    if (labels[i] < 0 || labels[i] >= bound)
      base::fail_input("{}: label {} is {}, no class from 0 to {}. Number the classes from 0 on.", array_path, i, labels[i], bound - 1);
  }
  return labels;
}

// One array with its labels, in an order drawn once.
struct LabelledArray {
  NpyArray images;
  std::vector<int64_t> labels;
  base::Permutation order;

  int64_t count() const { return images.extents[0]; }
};

class ImageArrays final : public ImageSource {
 public:
  ImageArrays(const std::string& path, const ImageOptions& options, double held_out_fraction) {
    add(path, "", options);
    if (base::path_exists(file_in(path, "test_images.npy"))) add(path, "test_", options);
    const int64_t first = parts_.front().count();
    held_out_ = parts_.size() > 1 ? parts_.back().count() : static_cast<int64_t>(static_cast<double>(first) * held_out_fraction);
    if (held_out_ >= images()) base::fail_input("{}: {} pictures, all held out. Lower eval.fraction.", path, images());
    outline_ = {.channels = options.channels, .classes = options.classes};
    for (const LabelledArray& part : parts_)
      if (options.classes == 0) outline_.classes = std::max(outline_.classes, *std::ranges::max_element(part.labels) + 1);
    if (outline_.classes < 2) base::fail_input("{}: all labels are 0, and at least two classes are needed.", path);
  }

  const ImageOutline& outline() const override { return outline_; }
  int64_t images() const override { return parts_.front().count() + (parts_.size() > 1 ? parts_.back().count() : 0); }
  int64_t held_out() const override { return held_out_; }
  int64_t label(int64_t image) const override {
    const auto [part, at] = find(image);
    return part->labels[at];
  }

  // Of the labels, the shape, and some parts of the values.
  uint64_t digest() const override {
    constexpr size_t kParts = 64, kPartBytes = 4096;
    base::Checksum sum;
    for (const LabelledArray& part : parts_) {
      sum.add(std::as_bytes(std::span(part.labels)));
      sum.add(std::as_bytes(std::span(part.images.extents)));
      const std::span<const std::byte> values = part.images.values;
      for (size_t i = 0; i < kParts; ++i) {
        const size_t at = values.size() / kParts * i;
        sum.add(values.subspan(at, std::min(kPartBytes, values.size() - at)));
      }
    }
    return sum.value();
  }

  void read(int64_t image, ImageValues& into) const override {
    const auto [part, at] = find(image);
    const NpyArray& array = part->images;
    into.height = array.extents[1], into.width = array.extents[2], into.channels = array.extents[3];
    const auto pixels = static_cast<size_t>(into.height * into.width), channels = static_cast<size_t>(into.channels);
    const bool bytes = array.type == "|u1";
    const std::byte* from = array.values.data() + at * pixels * channels * (bytes ? 1 : sizeof(float));
    into.values.resize(pixels * channels);
    for (size_t i = 0; i < pixels; ++i)
      for (size_t channel = 0; channel < channels; ++channel) {
        float value = 0;
        if (bytes)
          value = (static_cast<float>(std::to_integer<uint8_t>(from[i * channels + channel])) - 127.5f) / 127.5f;
        else
          std::memcpy(&value, from + (i * channels + channel) * sizeof(float), sizeof(float));
        if (!std::isfinite(value))
          base::fail_input("{}: picture {} has the value {} at row {}, column {}. Replace it by a number.", array.path, at, value,
                           static_cast<int64_t>(i) / into.width, static_cast<int64_t>(i) % into.width);
        into.values[channel * pixels + i] = value;
      }
  }

 private:
  void add(const std::string& folder, const std::string& prefix, const ImageOptions& options) {
    NpyArray images = open_images(file_in(folder, prefix + "images.npy"), options);
    const int64_t count = images.extents[0];
    std::vector<int64_t> labels = read_image_labels(folder, prefix + "labels", count, options.classes);
    parts_.push_back({std::move(images), std::move(labels),
                      base::Permutation(static_cast<uint64_t>(count), base::Random(1).for_purpose("images." + prefix + "order"))});
  }

  // The array of a picture, and its place in the file.
  std::pair<const LabelledArray*, size_t> find(int64_t image) const {
    const int64_t first = parts_.front().count();
    const LabelledArray& part = image < first ? parts_.front() : parts_.back();
    return {&part, static_cast<size_t>(part.order.at(static_cast<uint64_t>(image < first ? image : image - first)))};
  }

  std::vector<LabelledArray> parts_;  // to train on, and the test set
  ImageOutline outline_;
  int64_t held_out_ = 0;
};

}  // namespace

bool has_image_arrays(const std::string& path) { return base::path_exists(file_in(path, "images.npy")); }

std::unique_ptr<ImageSource> open_image_arrays(const std::string& path, const ImageOptions& options, double held_out_fraction) {
  return std::make_unique<ImageArrays>(path, options, held_out_fraction);
}

}  // namespace cairn::data
