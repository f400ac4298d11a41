#pragma once
#include <cstdint>

#include "planner/graph/model_graph.h"

namespace cairn::planner {

// Models without code, described as cards and parameters under their Hugging Face names. They test placement rules, and code for them has a
// list to start from.

struct EncoderDecoderShape {
  int64_t vocab = 96, embed = 32, layers = 2, heads = 4, head_dim = 8, mlp = 64, buckets = 8;
  bool gated = true;  // wi_0 and wi_1 (T5 1.1), or wi alone
  bool tied = false;  // the head is the embedding table
};
// T5: an encoder over the field "input_ids", a decoder over "decoder_input_ids" that reads it, and in each a bias by relative position that
// all layers share.
Description t5(const EncoderDecoderShape& shape);

struct DescribedDecoderShape {
  int64_t vocab = 96, embed = 32, layers = 2, heads = 4, mlp = 128, length = 16;
};
// OPT: a decoder with a table of positions, ReLU, and a bias on every layer.
Description opt(const DescribedDecoderShape& shape);

struct ImageShape {
  int64_t channels = 3, patch = 4, patches = 16, embed = 32, layers = 2, heads = 4, mlp = 128, classes = 10;
};
// ViT: patches of the field "pixel_values" [batch, patches, channels patch^2] through a product (the convolution, whose steps do not
// overlap), then layers that see all of them, and classes from the first token.
Description vit(const ImageShape& shape);

struct DiffusionShape {
  int64_t channels = 32, time = 64, heads = 4, text = 24;
};
// A piece of a U-Net (Stable Diffusion): a residual block of convolutions, then one of attention, over the picture and over the text.
Description unet_block(const DiffusionShape& shape);

// The same model with random letters for every name (parameters, cards, operations, values, logical axes) and without parameter roles:
// rules that depend only on data flow must give the same placements.
Description scrambled(const Description& description, uint64_t seed);

}  // namespace cairn::planner
