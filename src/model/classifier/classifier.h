#pragma once
#include <cstdint>
#include <memory>

#include "model/model.h"

namespace cairn::model {

struct ClassifierShape {
  int64_t features = 2;
  int64_t classes = 3;
  int64_t hidden = 64;
  int64_t layers = 2;  // hidden layers
  bool batch_norm = false;
};

// A multi-layer perceptron on "features" [batch, features] that writes "logits" [batch, classes]. Its blocks use autograd: the example of a
// model without hand-written gradients.
std::unique_ptr<Model> make_classifier(const ClassifierShape& shape);

}  // namespace cairn::model
