#pragma once
#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace cairn::data {

class ClipFrames;
struct ClipOptions;
struct DataOptions;

// Fields "pixels", float [samples, 1, frames, size, size], and "labels". fill() gives the middle of a clip: clips.frames frames without
// gaps, clips.size pixels as they are. fill_shaped() gives what training draws for (step, sample): a stride and a start in time; the short
// side resized to a random length, between that where the crop covers as much as fill's and 1.25 times the full one; a random crop; a
// mirror image with `flips`.
std::unique_ptr<Dataset> make_clip_dataset(std::unique_ptr<ClipFrames> frames, SampleRange training, SampleRange held_out,
                                           const ClipOptions& options, bool flips);

// The clips that the options name: generated ones, or those in data.path, of which the last `held_out_fraction` are held out.
struct OpenedClips {
  std::unique_ptr<Dataset> samples = {};
  uint64_t digest = 0;  // 0: generated
};
OpenedClips open_clips(const DataOptions& data, double held_out_fraction);

// Refuses what open_clips would refuse.
void check_clips(const DataOptions& data);

}  // namespace cairn::data
