// The first and the last block of a transformer that reads pictures (ViT).
#pragma once
#include <memory>
#include <string>

#include "mesh/gradients.h"
#include "model/block.h"
#include "model/decoder/norm.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// Parameters in the shapes that Hugging Face has.
struct PatchParts {
  mesh::ParamId token = {};       // [1, 1, embed]: stands for the whole picture
  mesh::ParamId positions = {};   // [1, positions, embed]
  mesh::ParamId projection = {};  // [embed, channels, patch, patch]
  mesh::ParamId bias = {};        // [embed]
};
// "pixels" [batch, channels, size, size] -> "hidden.0" [batch, positions, embed]: the class token and each patch times the projection, plus
// the row of the position.
std::unique_ptr<Block> make_patch_embedding_block(const DecoderShape& shape, PatchParts parts);

// classifier(norm(x)) of the first position -> "logits" [batch, classes].
struct ClassHeadParts {
  Norm norm;
  mesh::ParamId weight = {};  // [classes, embed]
  mesh::ParamId bias = {};    // [classes]
};
std::unique_ptr<Block> make_class_head_block(const DecoderShape& shape, std::string reads, ClassHeadParts parts);

}  // namespace cairn::model
