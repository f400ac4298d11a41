#include "data/clips/clip_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "data/clips/clip_frames.h"
#include "data/clips/resample.h"
#include "data/options.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr double kLargest = 1.25;  // of the resized short side, as a multiple of the full one: 320 to 256 in the publication

// What a batch takes of one clip.
struct ClipCut {
  int64_t first = 0, stride = 1;  // frames
  ResampledAxis y, x;
};

class ClipDataset final : public Dataset {
 public:
  ClipDataset(std::unique_ptr<ClipFrames> frames, const ClipOptions& clips, const ClipDatasetOptions& options)
      : frames_(std::move(frames)),
        options_(options),
        full_{.frames = clips.frames, .size = clips.size},
        random_(base::Random(options.seed).for_purpose("clips.cut")) {}

  SampleRange training() const override { return options_.training; }
  SampleRange held_out() const override { return options_.held_out; }
  int64_t tokens_in(int64_t) const override { return 1; }
  int64_t label_of(int64_t sample) const override { return frames_->label(sample); }

  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override {
    const ClipCut middle{.first = (frames_->frames() - full_.frames) / 2,
                         .stride = 1,
                         .y = resampled_axis(frames_->height(), 1, (frames_->height() - full_.size) / 2, full_.size),
                         .x = resampled_axis(frames_->width(), 1, (frames_->width() - full_.size) / 2, full_.size)};
    fill_cuts(ids, full_, batch, [&](int64_t) -> const ClipCut& { return middle; });
  }

  void fill_shaped(std::span<const int64_t> ids, const SampleShape& shape, int64_t step, mesh::Batch& batch) const override {
    if (shape.frames == 0) return fill(ids, batch);
    const base::Random of_step = random_.for_index(static_cast<uint64_t>(step));
    ClipCut cut;
    fill_cuts(ids, shape, batch, [&](int64_t id) -> const ClipCut& {
      cut = draw_cut(shape, of_step.for_index(static_cast<uint64_t>(id)));
      return cut;
    });
  }

 private:
  ClipCut draw_cut(const SampleShape& shape, const base::Random& random) const {
    const auto between = [&](uint64_t index, int64_t first, int64_t last) {
      return first + static_cast<int64_t>(random.below(index, static_cast<uint64_t>(std::max<int64_t>(last - first, 0)) + 1));
    };
    const int64_t height = frames_->height(), width = frames_->width(), short_side = std::min(height, width);
    ClipCut cut;
    const int64_t stride_most = shape.frames > 1 ? (frames_->frames() - 1) / (shape.frames - 1) : 1;
    cut.stride = between(0, 1, std::min(std::max<int64_t>(shape.stride_max, 1), stride_most));
    cut.first = between(1, 0, frames_->frames() - (shape.frames - 1) * cut.stride - 1);
    const double covered = static_cast<double>(shape.size) / static_cast<double>(full_.size) * static_cast<double>(short_side);
    const int64_t smallest = std::max(static_cast<int64_t>(std::nearbyint(covered)), shape.size);
    const int64_t side = between(2, smallest, static_cast<int64_t>(std::nearbyint(kLargest * static_cast<double>(short_side))));
    const double scale = static_cast<double>(side) / static_cast<double>(short_side);
    const auto resized = [&](int64_t extent) {
      return std::max(side, static_cast<int64_t>(std::floor(static_cast<double>(extent) * scale)));
    };
    cut.y = resampled_axis(height, scale, between(3, 0, resized(height) - shape.size), shape.size);
    cut.x = resampled_axis(width, scale, between(4, 0, resized(width) - shape.size), shape.size, options_.flips && random.below(5, 2) == 1);
    return cut;
  }

  template <typename CutOf>
  void fill_cuts(std::span<const int64_t> ids, const SampleShape& shape, mesh::Batch& batch, const CutOf& cut_of) const {
    const auto n = static_cast<int64_t>(ids.size());
    batch.ids = at::empty({n}, at::kLong);
    const at::Tensor pixels = at::empty({n, 1, shape.frames, shape.size, shape.size}, at::kFloat), labels = at::empty({n}, at::kLong);
    auto* into = pixels.mutable_data_ptr<float>();
    std::vector<uint8_t> scratch;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      CAIRN_CHECK(id >= 0 && id < frames_->clips(), "clip {} of {}", id, frames_->clips());
      batch.ids.mutable_data_ptr<int64_t>()[i] = id;
      labels.mutable_data_ptr<int64_t>()[i] = frames_->label(id);
      const ClipCut& cut = cut_of(id);
      for (int64_t t = 0; t < shape.frames; ++t, into += shape.size * shape.size)
        resample(frames_->frame(id, cut.first + t * cut.stride, scratch), frames_->width(), cut.y, cut.x, into);
    }
    batch.fields["pixels"] = {pixels};
    batch.fields["labels"] = {labels};
    batch.norm_samples = shape.norm_samples;
  }

  std::unique_ptr<ClipFrames> frames_;
  ClipDatasetOptions options_;
  SampleShape full_;
  base::Random random_;
};

std::unique_ptr<ClipFrames> frames_of(const DataOptions& data) {
  if (!data.sources.empty())
    base::fail_input("data.sources: clips come from one folder. Set data.path, or leave both out to generate clips.");
  if (!data.path.empty()) return open_clip_files(data.path, data.clips);
  if (data.clips.flip) base::fail_input("clips.flip = true: the direction of generated clips is their class. Leave it out.");
  return make_generated_clips(data.clips);
}

}  // namespace

std::unique_ptr<Dataset> make_clip_dataset(std::unique_ptr<ClipFrames> frames, const ClipOptions& clips,
                                           const ClipDatasetOptions& options) {
  return std::make_unique<ClipDataset>(std::move(frames), clips, options);
}

OpenedClips open_clips(const DataOptions& data, const ClipsToOpen& how) {
  std::unique_ptr<ClipFrames> frames = frames_of(data);
  const int64_t clips = frames->clips();
  const int64_t held = data.path.empty() ? data.clips.held_out : static_cast<int64_t>(static_cast<double>(clips) * how.held_out_fraction);
  if (held >= clips) base::fail_input("{}: {} clips, all held out. Lower eval.fraction.", data.path, clips);
  OpenedClips opened{.digest = frames->digest()};
  opened.samples =
      make_clip_dataset(std::move(frames), data.clips,
                        {.training = {0, clips - held}, .held_out = {clips - held, held}, .flips = data.clips.flip, .seed = how.seed});
  return opened;
}

void check_clips(const DataOptions& data) { frames_of(data); }

}  // namespace cairn::data
