#pragma once
#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace cairn::data {

class ClipFrames;
struct ClipOptions;
struct DataOptions;

struct ClipDatasetOptions {
  SampleRange training = {}, held_out = {};
  bool flips = false;
  uint64_t seed = 1;  // of what training draws
};

// Fields "pixels", float [samples, 1, frames, size, size], and "labels". fill() gives the middle of a clip: clips.frames frames without
// gaps, clips.size pixels as they are. fill_shaped() gives what training draws for (seed, step, sample): a stride and a start in time; the
// short side resized to a random length, between that where the crop covers as much as fill's and 1.25 times the full one; a random crop; a
// mirror image with `flips`.
std::unique_ptr<Dataset> make_clip_dataset(std::unique_ptr<ClipFrames> frames, const ClipOptions& clips, const ClipDatasetOptions& options);

// The clips that the options name: generated ones, or those in data.path, of which the last `held_out_fraction` are held out.
struct ClipsToOpen {
  double held_out_fraction = 0;
  uint64_t seed = 1;
};
struct OpenedClips {
  std::unique_ptr<Dataset> samples = {};
  uint64_t digest = 0;  // 0: generated
};
OpenedClips open_clips(const DataOptions& data, const ClipsToOpen& how);

// Refuses what open_clips would refuse.
void check_clips(const DataOptions& data);

}  // namespace cairn::data
