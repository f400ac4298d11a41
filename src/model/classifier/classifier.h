#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/model.h"

namespace cairn::model {

struct ClassifierShape {
  int64_t features = 2;
  int64_t classes = 3;
  int64_t hidden = 64;
  int64_t layers = 2;                // hidden layers
  std::vector<int64_t> widths = {};  // of the hidden layers, in place of `hidden` and `layers`
  bool batch_norm = false;
};

// A multi-layer perceptron on "features" [batch, features] that writes "logits" [batch, classes].
//
// Without `widths` its layers are tanh(x w^T + b), with batch normalisation on request, and its blocks use autograd: the example of a model
// without hand-written gradients. With `widths` they are max(0, x w^T + b) with hand-written gradients (dense_block.h).
std::unique_ptr<Model> make_classifier(const ClassifierShape& shape);

}  // namespace cairn::model
