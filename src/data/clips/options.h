// The recipe's clips.* keys: short videos with class labels (data.kind = "clips").
#pragma once
#include <cstdint>

#include "base/schema.h"

namespace cairn::data {

struct ClipOptions {
  int64_t frames = 16;
  int64_t size = 32;
  int64_t classes = 8;
  int64_t count = 4000;  // of generated clips, for training
  int64_t held_out = 1000;
  double noise = 1;
  bool flip = false;  // half of the training clips are mirrored

  bool operator==(const ClipOptions&) const = default;
};

base::Schema<ClipOptions> clip_schema();

}  // namespace cairn::data
