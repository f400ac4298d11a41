#pragma once
#include <memory>

#include "model/model.h"

namespace cairn::model {

// A small convolutional network: 3 x 3 convolutions with batch normalisation and ReLU, global average pooling, a linear layer. Reads
// "pixels" [samples, channels, height, width], writes "logits" [samples, classes]. `skip`: the first layer's output is also added to the
// last layer's input, even across pipeline stages.
struct CnnShape {
  int64_t channels = 1;
  int64_t width = 8;  // channels of the hidden layers
  int64_t layers = 3;
  int64_t classes = 3;
  bool skip = false;
};
std::unique_ptr<Model> make_cnn(const CnnShape& shape);

}  // namespace cairn::model
