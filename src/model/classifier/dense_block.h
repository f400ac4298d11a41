// A linear layer of a classifier with its activation, with hand-written gradients.
#pragma once
#include <memory>
#include <string>

#include "mesh/gradients.h"
#include "model/block.h"

namespace cairn::model {

// Writes max(0, x w^T + b), or x w^T + b without `activate`.
struct DenseShape {
  std::string name;  // "layers.0"
  std::string reads, writes;
  int64_t in = 0, out = 0;
  mesh::ParamId weight = {}, bias = {};
  bool activate = true;
};
std::unique_ptr<Block> make_dense_block(DenseShape shape);

}  // namespace cairn::model
