#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "model/block.h"
#include "model/vision/channel_norm.h"

namespace cairn::model {

// A layer of a convolutional network (conv_net.h) as one block, which may leave out channels in its middle, or all of itself
// (Call::subnet). Values are [samples, height, width, channels]: the products are then products of matrices.
struct ConvLayer {
  std::string name, reads, writes;
  int64_t stage = 0, place = 0;
  size_t layer = 0;  // among all layers of the model
  int64_t in = 0, middle = 0, out = 0;
  int64_t kernel = 3, stride = 1;
  int64_t positions = 1;  // pixels of what it reads, for costs
  mesh::ParamId expand = {}, depthwise = {}, project = {};
  ChannelNorm expand_norm = {}, depthwise_norm = {};

  bool looks_at_neighbours() const { return kernel > 1; }
  bool is_residual() const { return in == out && stride == 1; }
};
std::unique_ptr<Block> make_conv_layer(ConvLayer layer);

// kernel x kernel convolution of "pixels" [samples, channels, height, width] -> `writes` [samples, height, width, out].
struct ConvStem {
  std::string writes;
  int64_t channels = 3, out = 16, kernel = 3, stride = 1, positions = 1;
  mesh::ParamId weight = {};  // [out, channels, kernel, kernel]
};
std::unique_ptr<Block> make_conv_stem(ConvStem stem);

// norm(x), mean over positions, linear -> "logits".
struct ConvHead {
  std::string reads;
  int64_t width = 0, classes = 0;
  ChannelNorm norm = {};
  mesh::ParamId weight = {}, bias = {};
};
std::unique_ptr<Block> make_conv_head(ConvHead head);

}  // namespace cairn::model
