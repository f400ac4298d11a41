#pragma once
#include <cstdint>

namespace cairn::model {

// Parallel streams (ParScale, arXiv:2505.10475): the model runs `count` times side by side on the same tokens with the same weights. Each
// stream has learned keys and values of its own in every attention layer, and a mixer weighs the last hidden states of each token
// (decoder/stream_mixer.h). With one stream there are neither.
struct StreamShape {
  int64_t count = 1;
  int64_t prefix_tokens = 48;
  double smoothing = 0.01;
  bool along_tp = false;  // each rank along tp runs a part of the streams, with whole layers; config.json does not say
  bool operator==(const StreamShape&) const = default;
};

}  // namespace cairn::model
