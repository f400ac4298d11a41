// The recipe's images.* keys: pictures with class labels (data.kind = "images").
#pragma once
#include <cstdint>

#include "base/schema.h"

namespace cairn::data {

struct ImageOptions {
  int64_t size = 32;
  int64_t channels = 3;
  int64_t classes = 0;   // 0: as many as the folders or labels have; 8 generated ones
  int64_t count = 4000;  // of generated pictures, for training
  int64_t held_out = 1000;
  double noise = 1;
  int64_t crop = 0;   // training pictures are moved by up to so many pixels
  bool flip = false;  // half of the training pictures are mirrored

  bool operator==(const ImageOptions&) const = default;
};

base::Schema<ImageOptions> image_schema();

}  // namespace cairn::data
