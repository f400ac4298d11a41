#pragma once
#include <memory>
#include <string>

#include "mesh/gradients.h"
#include "model/block.h"

namespace cairn::model {

// Batch normalisation (batch_norm.h) and ReLU of value `reads` [samples, channels, ...] into `writes`, with gradients by hand: groups may
// lie on several ranks, which exchange sums in forward and backward.
struct BatchNormBlock {
  std::string name, reads, writes;
  mesh::ParamId gain, shift;
  int64_t values = 0;  // of a sample
  int64_t channels = 0;
};
std::unique_ptr<Block> make_batch_norm_block(const BatchNormBlock& block);

}  // namespace cairn::model
