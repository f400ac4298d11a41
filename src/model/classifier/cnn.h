#pragma once
#include <memory>

#include "model/model.h"

namespace cairn::model {

// A small convolutional network: pairs of convolution (3 x 3) and batch normalisation with a rectifier, a mean over the picture, a linear
// layer. Reads "pixels" [samples, channels, height, width], writes "logits" [samples, classes]. `skip`: the first layer's output is added
// to the last one's input too, wherever that is.
struct CnnShape {
  int64_t channels = 1;
  int64_t width = 8;  // channels of the hidden layers
  int64_t layers = 3;
  int64_t classes = 3;
  bool skip = false;
};
std::unique_ptr<Model> make_cnn(const CnnShape& shape);

}  // namespace cairn::model
