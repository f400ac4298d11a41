#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn::data {

struct ImageOptions;

// The values of one picture, [channels, height, width]. Bytes become (v - 127.5) / 127.5, between -1 and 1.
struct ImageValues {
  int64_t channels = 0, height = 0, width = 0;
  std::vector<float> values = {};
};

// What a model has to know of pictures, which is known without reading them.
struct ImageOutline {
  int64_t channels = 0, classes = 0;
  std::vector<std::string> class_names = {};  // empty: they have numbers only
};

// Labelled pictures: first those to train on, then those that are held out. Immutable, so a loader's thread may read beside others.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual const ImageOutline& outline() const = 0;
  virtual int64_t images() const = 0;
  virtual int64_t held_out() const = 0;
  virtual int64_t label(int64_t image) const = 0;
  virtual uint64_t digest() const = 0;  // 0: generated
  // Writes one picture in its own size; reuses the memory of `into`.
  virtual void read(int64_t image, ImageValues& into) const = 0;
};

// Textures: stripes with a direction and a width that are their class, in random colours and places, under noise
// (generated_textures.cpp). A picture depends on its number alone.
std::unique_ptr<ImageSource> make_generated_textures(const ImageOptions& options);

// The folder `path` (image_folder.cpp): CLASS/*.png, *.jpg or *.jpeg; or train/CLASS/... and test/CLASS/...
std::unique_ptr<ImageSource> open_image_folder(const std::string& path, const ImageOptions& options, double held_out_fraction);

// The folder `path` with images.npy and labels.npy or labels.csv (image_arrays.cpp), and test_images.npy with its labels where there is a
// test set.
std::unique_ptr<ImageSource> open_image_arrays(const std::string& path, const ImageOptions& options, double held_out_fraction);
bool has_image_arrays(const std::string& path);

}  // namespace cairn::data
