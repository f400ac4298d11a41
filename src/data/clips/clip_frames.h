#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn::data {

struct ClipOptions;

// The frames of clips, as grey values. Immutable, so a loader's thread may read beside others.
class ClipFrames {
 public:
  virtual ~ClipFrames() = default;
  virtual int64_t clips() const = 0;
  virtual int64_t frames() const = 0;
  virtual int64_t height() const = 0;
  virtual int64_t width() const = 0;
  virtual int64_t label(int64_t clip) const = 0;
  virtual uint64_t digest() const = 0;
  // One frame, [height, width]: `scratch`, or memory of its own.
  virtual const uint8_t* frame(int64_t clip, int64_t frame, std::vector<uint8_t>& scratch) const = 0;
};

// A textured blob that drifts over noise; the class is its direction and speed (generated_clips.cpp). A clip depends on its number alone.
std::unique_ptr<ClipFrames> make_generated_clips(const ClipOptions& options);

// The folder `path` with the files clips.npy and labels.csv (clip_files.cpp).
std::unique_ptr<ClipFrames> open_clip_files(const std::string& path, const ClipOptions& options);

}  // namespace cairn::data
