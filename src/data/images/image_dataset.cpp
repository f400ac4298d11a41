#include "data/images/image_dataset.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "data/images/scale.h"
#include "data/options.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

// How a training picture is changed.
struct ImageChange {
  int64_t down = 0, right = 0;
  bool mirrored = false;
};

class ImageDataset final : public Dataset {
 public:
  ImageDataset(std::unique_ptr<ImageSource> source, const ImageDatasetOptions& options)
      : source_(std::move(source)),
        size_(options.size),
        crop_(options.crop),
        flip_(options.flip),
        random_(base::Random(options.seed).for_purpose("images.change")) {}

  SampleRange training() const override { return {0, source_->images() - source_->held_out()}; }
  SampleRange held_out() const override { return {source_->images() - source_->held_out(), source_->held_out()}; }
  int64_t tokens_in(int64_t) const override { return 1; }
  int64_t label_of(int64_t sample) const override { return source_->label(sample); }

  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override {
    fill_changed(ids, batch, [](int64_t) { return ImageChange{}; });
  }

  void fill_training(std::span<const int64_t> ids, int64_t index, mesh::Batch& batch) const override {
    if (crop_ == 0 && !flip_) return fill(ids, batch);
    const base::Random of_batch = random_.for_index(static_cast<uint64_t>(index));
    fill_changed(ids, batch, [&](int64_t id) {
      const base::Random random = of_batch.for_index(static_cast<uint64_t>(id));
      const auto moved = [&](uint64_t i) { return static_cast<int64_t>(random.below(i, static_cast<uint64_t>(2 * crop_ + 1))) - crop_; };
      return ImageChange{.down = moved(0), .right = moved(1), .mirrored = flip_ && random.below(2, 2) == 1};
    });
  }

 private:
  template <typename ChangeOf>
  void fill_changed(std::span<const int64_t> ids, mesh::Batch& batch, const ChangeOf& change_of) const {
    const auto n = static_cast<int64_t>(ids.size());
    const int64_t channels = source_->outline().channels, elements = channels * size_ * size_;
    batch.ids = at::empty({n}, at::kLong);
    const at::Tensor pixels = at::empty({n, channels, size_, size_}, at::kFloat), labels = at::empty({n}, at::kLong);
    ImageValues whole;
    std::vector<float> scaled(static_cast<size_t>(elements));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      CAIRN_CHECK(id >= 0 && id < source_->images(), "picture {} of {}", id, source_->images());
      batch.ids.mutable_data_ptr<int64_t>()[i] = id;
      labels.mutable_data_ptr<int64_t>()[i] = source_->label(id);
      source_->read(id, whole);
      float* into = pixels.mutable_data_ptr<float>() + i * elements;
      const ImageChange change = change_of(id);
      if (change.down == 0 && change.right == 0 && !change.mirrored) {
        scale_and_crop(whole, size_, into);
        continue;
      }
      scale_and_crop(whole, size_, scaled.data());
      move(scaled, change, into);
    }
    batch.fields["pixels"] = {pixels};
    batch.fields["labels"] = {labels};
  }

  // Pixels that come from outside of the picture are 0, a middle grey.
  void move(const std::vector<float>& from, const ImageChange& change, float* into) const {
    const int64_t planes = static_cast<int64_t>(from.size()) / (size_ * size_);
    for (int64_t plane = 0; plane < planes; ++plane)
      for (int64_t y = 0; y < size_; ++y)
        for (int64_t x = 0; x < size_; ++x, ++into) {
          const int64_t row = y - change.down, moved = x - change.right, column = change.mirrored ? size_ - 1 - moved : moved;
          const bool inside = row >= 0 && row < size_ && moved >= 0 && moved < size_;
          *into = inside ? from[static_cast<size_t>((plane * size_ + row) * size_ + column)] : 0;
        }
  }

  std::unique_ptr<ImageSource> source_;
  int64_t size_, crop_;
  bool flip_;
  base::Random random_;
};

std::unique_ptr<ImageSource> image_source_of(const DataOptions& data, double held_out_fraction) {
  if (!data.sources.empty())
    base::fail_input("data.sources: pictures come from one folder. Set data.path, or leave both out to generate some.");
  if (data.images.crop >= data.images.size)
    base::fail_input("images.crop = {}: moves pictures of images.size = {} out of sight. Use less.", data.images.crop, data.images.size);
  if (!data.path.empty())
    return has_image_arrays(data.path) ? open_image_arrays(data.path, data.images, held_out_fraction)
                                       : open_image_folder(data.path, data.images, held_out_fraction);
  if (data.images.flip) base::fail_input("images.flip = true: the direction of generated stripes is their class. Leave it out.");
  if (data.images.classes == 1) base::fail_input("images.classes = 1: at least two classes are needed. Use 2 or more, or leave it out.");
  return make_generated_textures(data.images);
}

}  // namespace

std::unique_ptr<Dataset> make_image_dataset(std::unique_ptr<ImageSource> source, const ImageDatasetOptions& options) {
  return std::make_unique<ImageDataset>(std::move(source), options);
}

OpenedImages open_images(const DataOptions& data, const ImagesToOpen& how) {
  std::unique_ptr<ImageSource> source = image_source_of(data, how.held_out_fraction);
  OpenedImages opened{.samples = {}, .outline = source->outline(), .digest = source->digest()};
  opened.samples = make_image_dataset(std::move(source),
                                      {.size = data.images.size, .crop = data.images.crop, .flip = data.images.flip, .seed = how.seed});
  return opened;
}

ImageOutline image_outline(const DataOptions& data) { return image_source_of(data, 0)->outline(); }

}  // namespace cairn::data
