#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/model.h"

namespace cairn::model {

// A convolutional network for pictures (model.kind = "cnn"): a convolution, stages of inverted residual layers, batch normalisation, the
// mean over all positions, a linear layer. Reads "pixels" [samples, channels, size, size], writes "logits" [samples, classes].
//
// A layer of a stage (MobileNet's, with the norm before the projection):
//
//   h = relu(norm(x w_expand^T))          middle = expand * in channels
//   h = relu(norm(depthwise(h)))          kernel x kernel; not with kernel = 1
//   y = x + h w_project^T                 without x where the layer changes the width or the size
//
// The first layer of every stage but the first halves height and width. With kernel = 1 nothing looks at neighbours and no size changes:
// on pictures of one pixel the network is a residual MLP.
struct ConvNetShape {
  int64_t channels = 3, size = 32, classes = 10;
  std::vector<int64_t> widths = {16, 32, 64};  // of each stage
  std::vector<int64_t> depths = {2, 2, 2};     // layers of each stage
  int64_t expand = 4;
  int64_t kernel = 3;
  std::vector<int64_t> middles = {};  // channels in the middle of each layer, in running order; empty: as `expand` says
};
std::unique_ptr<Model> make_conv_net(const ConvNetShape& shape);

// The shape of a model that make_conv_net made; null: another kind of model.
const ConvNetShape* conv_net_shape(const Model& model);
// The channels in the middle of each layer.
std::vector<int64_t> middles_of(const ConvNetShape& shape);

}  // namespace cairn::model
