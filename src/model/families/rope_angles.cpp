// Rotary angles with rope scaling. Pair i of a head (i < head_dim / 2) turns by position * f_i, with f_i = theta^(-2i / head_dim). A
// scaling with factor s stretches the angles for sequences longer than the model was trained on (length L = original_length):
//
//   linear   f_i / s                                     (position interpolation, arXiv:2306.15595)
//   dynamic  f_i up to the model's length; longer sequences are refused, so nothing is scaled
//   llama3   by wavelength w = 2 pi / f_i: f_i where w < L / high_freq_factor, f_i / s where w > L / low_freq_factor, a blend in between
//   yarn     by turns within L: f_i above beta_fast turns, f_i / s below beta_slow turns, a linear ramp over the pairs in between; cosine
//            and sine are multiplied by 0.1 ln(s) + 1                    (arXiv:2309.00071)
#include "model/families/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/aten.h"

namespace cairn::model {
namespace {

// llama3.
double by_wavelength(double frequency, const RopeScaling& s, double original) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double longest = original / s.low_freq_factor, shortest = original / s.high_freq_factor;
  if (wavelength < shortest) return frequency;
  if (wavelength > longest) return frequency / s.factor;
  const double kept = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return frequency * (kept + (1 - kept) / s.factor);
}

// yarn (section 3.2 of the paper).
double by_turns(double frequency, int64_t pair, const DecoderShape& shape, double original) {
  const RopeScaling& s = shape.rope_scaling;
  const auto dim = static_cast<double>(shape.head_dim);
  const auto pair_that_turns = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(shape.rope_theta));
  };
  double first = pair_that_turns(s.beta_fast), last = pair_that_turns(s.beta_slow);
  if (s.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, dim - 1);
  if (first == last) last += 0.001;  // as `transformers` does: a ramp of width 0 would divide by 0
  const double stretched = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  return frequency * (1 - stretched) + frequency / s.factor * stretched;
}

}  // namespace

std::vector<double> rope_frequencies(const DecoderShape& shape) {
  const RopeScaling& s = shape.rope_scaling;
  const auto original = static_cast<double>(s.original_length > 0 ? s.original_length : shape.length);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < shape.head_dim / 2; ++pair) {
    const double plain = std::pow(shape.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(shape.head_dim));
    switch (s.kind) {
      case RopeScaling::Kind::none:
      case RopeScaling::Kind::dynamic:  // see above
        frequencies.push_back(plain);
        break;
      case RopeScaling::Kind::linear:
        frequencies.push_back(plain / s.factor);
        break;
      case RopeScaling::Kind::llama3:
        frequencies.push_back(by_wavelength(plain, s, original));
        break;
      case RopeScaling::Kind::yarn:
        frequencies.push_back(by_turns(plain, pair, shape, original));
    }
  }
  return frequencies;
}

double rope_magnitude(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::yarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  const auto grown = [&s](double by) { return s.factor <= 1 ? 1.0 : 0.1 * by * std::log(s.factor) + 1.0; };
  return s.mscale > 0 && s.mscale_all_dim > 0 ? grown(s.mscale) / grown(s.mscale_all_dim) : grown(1);
}

kernels::RopeTable rope_angles(const DecoderShape& shape, int64_t rows, const at::TensorOptions& options) {
  const RopeScaling::Kind kind = shape.rope_scaling.kind;
  if (kind == RopeScaling::Kind::none || kind == RopeScaling::Kind::dynamic)
    return kernels::rope_table(rows, shape.head_dim, shape.rope_theta, options);
  const at::TensorOptions wide = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  const at::Tensor angles = at::outer(at::arange(rows, wide), at::tensor(rope_frequencies(shape), wide));
  const double magnitude = rope_magnitude(shape.rope_scaling);
  return {(at::cos(angles) * magnitude).to(options), (at::sin(angles) * magnitude).to(options)};
}

}  // namespace cairn::model
