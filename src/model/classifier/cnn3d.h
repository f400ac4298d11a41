#pragma once
#include <cstdint>
#include <memory>

#include "model/model.h"

namespace cairn::model {

// A network of 3 x 3 x 3 convolutions for clips, each with batch normalisation and ReLU, then global average pooling and a linear layer.
// Reads "pixels" [samples, 1, frames, height, width] of any extents, writes "logits" [samples, classes].
//
// Every layer halves height and width; the second and the third halve the frames. Layers have 1, 2, 2, 4, 4, ... times `width` channels.
struct Cnn3dShape {
  int64_t width = 16;
  int64_t layers = 4;
  int64_t classes = 8;
  int64_t frames = 16, size = 32;  // what the costs on the cards are for
};
std::unique_ptr<Model> make_cnn3d(const Cnn3dShape& shape);

// The product of its strides in time, and in space.
int64_t cnn3d_time_stride(int64_t layers);
int64_t cnn3d_space_stride(int64_t layers);

}  // namespace cairn::model
