// Class c of n: direction c mod d of d, and speed c / d, where d is half of an even n (two speeds), else n (one speed). With x the distance
// from the blob's centre, which goes around at the borders:
//
//   value = 128 + 70 exp(-|x|^2 / 2 r^2) (0.6 + 0.4 cos(k.x + phase)) + noise
//
// One frame alone does not show the class. The noise of a frame is a sum of two uniform bytes per pixel.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/random.h"
#include "data/clips/clip_frames.h"
#include "data/clips/options.h"

namespace cairn::data {
namespace {

constexpr double kAmplitude = 70, kRadius = 1.0 / 8;         // of the frame's size
constexpr double kSlow = 1.0 / 64, kFast = 3.0 / 64;         // of the frame's size, per frame
constexpr double kNoise = 40, kBytePairDeviation = 104.512;  // the deviation of a sum of two uniform bytes

// Numbers that follow a seed, eight bytes at a time (splitmix64).
struct ByteSource {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

// What one coordinate contributes to the blob: the bell, and the bell times cosine and sine of the texture.
struct BlobAxis {
  std::vector<float> bell, cosine, sine;
};

class GeneratedClips final : public ClipFrames {
 public:
  explicit GeneratedClips(const ClipOptions& options) : options_(options), random_(base::Random(1).for_purpose("clips")) {}

  int64_t clips() const override { return options_.count + options_.held_out; }
  int64_t frames() const override { return options_.frames; }
  int64_t height() const override { return options_.size; }
  int64_t width() const override { return options_.size; }
  int64_t label(int64_t clip) const override { return clip % options_.classes; }
  uint64_t digest() const override { return 0; }

  const uint8_t* frame(int64_t clip, int64_t frame, std::vector<uint8_t>& scratch) const override {
    const base::Random random = random_.for_index(static_cast<uint64_t>(clip));
    const auto size = static_cast<double>(options_.size);
    const int64_t speeds = options_.classes % 2 == 0 && options_.classes >= 4 ? 2 : 1, directions = options_.classes / speeds;
    const int64_t of_class = label(clip);
    const double angle = 2 * std::numbers::pi * static_cast<double>(of_class % directions) / static_cast<double>(directions);
    const double travelled = size * (of_class / directions == 0 ? kSlow : kFast) * static_cast<double>(frame);
    const double texture = 2 * std::numbers::pi * random.uniform(2), waves = 2 * std::numbers::pi / (size * kRadius);
    const BlobAxis x = axis(random.uniform(0) * size + travelled * std::cos(angle), waves * std::cos(texture));
    const BlobAxis y = axis(random.uniform(1) * size + travelled * std::sin(angle), waves * std::sin(texture));
    scratch.resize(static_cast<size_t>(options_.size * options_.size));
    draw(x, y, 2 * std::numbers::pi * random.uniform(3), random.for_name("noise").bits64(static_cast<uint64_t>(frame)), scratch);
    return scratch.data();
  }

 private:
  BlobAxis axis(double centre, double wave) const {
    const auto size = static_cast<double>(options_.size);
    BlobAxis axis;
    for (int64_t i = 0; i < options_.size; ++i) {
      const double away = std::remainder(static_cast<double>(i) - centre, size);
      const double bell = std::exp(-0.5 * std::pow(away / (size * kRadius), 2));
      axis.bell.push_back(static_cast<float>(bell));
      axis.cosine.push_back(static_cast<float>(bell * std::cos(wave * away)));
      axis.sine.push_back(static_cast<float>(bell * std::sin(wave * away)));
    }
    return axis;
  }

  // cos(a + b + phase) of the texture, by its parts along x and y.
  void draw(const BlobAxis& x, const BlobAxis& y, double phase, uint64_t seed, std::vector<uint8_t>& into) const {
    const auto size = static_cast<size_t>(options_.size);
    const auto c = static_cast<float>(0.4 * kAmplitude * std::cos(phase)), s = static_cast<float>(0.4 * kAmplitude * std::sin(phase));
    const auto plain = static_cast<float>(0.6 * kAmplitude), noise = static_cast<float>(options_.noise * kNoise / kBytePairDeviation);
    ByteSource bytes{seed};
    uint64_t word = 0;
    for (size_t i = 0; i < size; ++i) {
      const float along_cosine = c * y.cosine[i] - s * y.sine[i], along_sine = c * y.sine[i] + s * y.cosine[i];
      for (size_t j = 0; j < size; ++j, word >>= 16) {
        if (size_t at = i * size + j; at % 4 == 0) word = bytes.next();
        const auto pair = static_cast<float>(word & 0xff) + static_cast<float>((word >> 8) & 0xff) - 255;
        const float value = 128 + plain * y.bell[i] * x.bell[j] + along_cosine * x.cosine[j] - along_sine * x.sine[j] + noise * pair;
        into[i * size + j] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
      }
    }
  }

  ClipOptions options_;
  base::Random random_;
};

}  // namespace

std::unique_ptr<ClipFrames> make_generated_clips(const ClipOptions& options) { return std::make_unique<GeneratedClips>(options); }

}  // namespace cairn::data
