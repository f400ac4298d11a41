// Parallel streams in a recipe (decoder/stream_shape.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/schema.h"

namespace cairn::model {

struct DecoderShape;

// The recipe's model.parscale.* keys.
struct StreamOptions {
  int64_t streams = 1;
  int64_t prefix_tokens = 48;
  double smoothing = 0.01;
  std::string train = "all";
  int64_t start_step = 0;
  std::string placement = "batch";
  std::string from = {};
  bool operator==(const StreamOptions&) const = default;
};
base::Schema<StreamOptions> stream_schema();

// Sets the streams of `shape`. Refuses what cannot work. No change where there is one stream.
void set_streams(DecoderShape& shape, const StreamOptions& options);
// The options that give the shape's streams, on top of `options`.
StreamOptions stream_options_of(const DecoderShape& shape, StreamOptions options = {});

// Whether a parameter of this name is a prefix or one of the mixer's.
bool is_stream_parameter(std::string_view name);

// What is added to the model_type in config.json.
inline constexpr std::string_view kStreamsSuffix = "_parscale";
inline constexpr int64_t kStreamsMax = 256, kPrefixTokensMax = 65536;

}  // namespace cairn::model
