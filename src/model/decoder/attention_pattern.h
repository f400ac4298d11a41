// S2-Attention in a recipe and in config.json: which layers and heads have a block pattern (kernels/block_pattern.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

struct DecoderShape;

// The recipe's model.attention.* keys.
struct PatternOptions {
  std::string type = "dense";
  int64_t block = 64;
  int64_t local_blocks = 16;
  int64_t stride = 8;
  int64_t near_stride = 1;
  int64_t offset = 0;
  int64_t dense_heads = 0;
  std::string dense_layers = "none";
  bool homogeneous = false;
  bool allow_partial_cover = false;
  std::string pattern_file = {};
  bool operator==(const PatternOptions&) const = default;
};
base::Schema<PatternOptions> pattern_schema();

// Sets the pattern of `shape`, whose heads, layers and length are set. Refuses one that leaves a part of the context without a head that
// sees it, and what no kernel computes. No change where options.type is "dense".
void set_pattern(DecoderShape& shape, const PatternOptions& options);
// The options that give the shape's pattern, apart from its table.
PatternOptions pattern_options_of(const DecoderShape& shape);

// Whether a layer has the pattern.
bool has_pattern(const DecoderShape& shape, int64_t layer);

// What is added to the model_type and put before the architecture: other attention is another function of the same parameters.
inline constexpr std::string_view kPatternSuffix = "_s2", kPatternPrefix = "S2";

}  // namespace cairn::model
