#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/images/image_source.h"

namespace cairn::data {

struct DataOptions;

// Fields "pixels", float [samples, channels, size, size], and "labels". fill() gives the middle of a picture, scaled until its shorter side
// is images.size. fill_training() moves and mirrors it, as images.crop and images.flip say, drawn for (seed, batch, sample).
struct ImageDatasetOptions {
  int64_t size = 0, crop = 0;
  bool flip = false;
  uint64_t seed = 1;
};
std::unique_ptr<Dataset> make_image_dataset(std::unique_ptr<ImageSource> source, const ImageDatasetOptions& options);

// The pictures that the options name: generated ones, or those in data.path.
struct OpenedImages {
  std::unique_ptr<Dataset> samples = {};
  ImageOutline outline = {};
  uint64_t digest = 0;  // 0: generated
};
struct ImagesToOpen {
  double held_out_fraction = 0;
  uint64_t seed = 1;  // of what training draws
};
OpenedImages open_images(const DataOptions& data, const ImagesToOpen& how);

// Channels and classes, without reading pictures. Refuses what open_images would refuse.
ImageOutline image_outline(const DataOptions& data);

}  // namespace cairn::data
