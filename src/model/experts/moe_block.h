#pragma once
#include <memory>
#include <optional>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_branch.h"
#include "model/experts/router.h"
#include "model/experts/shape.h"

namespace cairn::model {

struct DecoderShape;

struct MoeParts {
  std::optional<Norm> norm = {};
  std::optional<mesh::ParamId> bias = {};  // [experts]: of the router's choice
  mesh::ParamId router = {};               // [experts, embed]
  mesh::ParamId gate_up = {};              // [experts, 2 * width, embed]: gate, then up
  mesh::ParamId down = {};                 // [experts, embed, width]
  struct Shared {
    Linear up, down, gate;  // gate and up together; down; the sigmoid gate, which makes one number
  };
  std::optional<Shared> shared = {};
};

// x + sum over the chosen experts e of g_e down_e(silu(gate_e(norm(x))) * up_e(norm(x))), plus the shared expert where there is one.
// `layers`: with experts, in the whole model.
std::unique_ptr<Block> make_moe_block(const DecoderShape& shape, BlockIo io, MoeParts parts);

}  // namespace cairn::model
