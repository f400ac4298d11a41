// Class c of n: stripes in direction c mod d of d, with a width of c / d, where d is half of an even n of 4 or more (two widths), else n
// (one width). With u the distance along the direction, in units of the picture's size:
//
//   value = 127.5 + colour (50 cos(2 pi f u + phase)) + noise        f = 3 or 5 stripes
//
// Phase, colour and the noise of each picture are drawn by its number; directions and widths vary a little within a class. Of one pixel
// alone the class cannot be told.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/random.h"
#include "data/images/image_source.h"
#include "data/images/options.h"

namespace cairn::data {
namespace {

constexpr double kStripes[] = {3, 5}, kStripeAmplitude = 50, kTextureNoise = 45, kMiddle = 127.5;
constexpr int64_t kTextureClasses = 8;

class GeneratedTextures final : public ImageSource {
 public:
  explicit GeneratedTextures(const ImageOptions& options) : options_(options), random_(base::Random(1).for_purpose("images")) {
    outline_ = {.channels = options.channels, .classes = options.classes > 0 ? options.classes : kTextureClasses};
  }

  const ImageOutline& outline() const override { return outline_; }
  int64_t images() const override { return options_.count + options_.held_out; }
  int64_t held_out() const override { return options_.held_out; }
  int64_t label(int64_t image) const override { return image % outline_.classes; }
  uint64_t digest() const override { return 0; }

  void read(int64_t image, ImageValues& into) const override {
    const base::Random random = random_.for_index(static_cast<uint64_t>(image));
    const int64_t widths = outline_.classes % 2 == 0 && outline_.classes >= 4 ? 2 : 1, directions = outline_.classes / widths;
    const int64_t of_class = label(image), size = options_.size;
    const double jitter = 0.35 * (random.uniform(0) - 0.5);  // of the distance to the next direction
    const double angle = std::numbers::pi * (static_cast<double>(of_class % directions) + jitter) / static_cast<double>(directions);
    const double stripes = kStripes[of_class / directions] * (1 + 0.2 * (random.uniform(1) - 0.5));
    const double phase = 2 * std::numbers::pi * random.uniform(2), step = 2 * std::numbers::pi * stripes / static_cast<double>(size);
    into.channels = options_.channels, into.height = into.width = size;
    const auto pixels = static_cast<size_t>(size * size);
    into.values.resize(static_cast<size_t>(into.channels) * pixels);
    random.for_name("noise").fill_normal(into.values);
    const auto noise = static_cast<float>(options_.noise * kTextureNoise);
    for (int64_t channel = 0; channel < into.channels; ++channel) {
      const double colour = 0.4 + 0.6 * random.uniform(static_cast<uint64_t>(3 + channel));
      float* values = into.values.data() + static_cast<size_t>(channel) * pixels;
      for (int64_t y = 0; y < size; ++y)
        for (int64_t x = 0; x < size; ++x, ++values) {
          const double along = static_cast<double>(x) * std::cos(angle) + static_cast<double>(y) * std::sin(angle);
          const auto striped = static_cast<float>(kMiddle + colour * kStripeAmplitude * std::cos(step * along + phase));
          *values = (std::clamp(striped + noise * *values, 0.0f, 255.0f) - static_cast<float>(kMiddle)) / static_cast<float>(kMiddle);
        }
    }
  }

 private:
  ImageOptions options_;
  ImageOutline outline_;
  base::Random random_;
};

}  // namespace

std::unique_ptr<ImageSource> make_generated_textures(const ImageOptions& options) { return std::make_unique<GeneratedTextures>(options); }

}  // namespace cairn::data
