#pragma once
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "kernels/row_groups.h"
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

// A layer with experts in steps, for runners that place rows of tokens on ranks themselves (parallel/generate/expert_stage.h). No
// gradients.
//
//   choose -> [rows travel] -> run_experts -> [results travel] -> combine
class RoutedBlock {
 public:
  virtual ~RoutedBlock() = default;
  // For rows x of the residual stream, [n, embed].
  struct Choice {
    at::Tensor normed;        // [n, embed]: what experts read. A function of each row by itself
    at::Tensor ids, weights;  // [n, top_k]: int64, fp32; the first is the likeliest
  };
  virtual Choice choose(const at::Tensor& x, const Call& call) const = 0;
  virtual at::Tensor norm(const at::Tensor& x, const Call& call) const = 0;  // Choice::normed alone
  // Rows by local expert (as Weights::get gives them) -> their results, without weights.
  virtual at::Tensor run_experts(const at::Tensor& normed, const kernels::RowGroups& groups, const Call& call) const = 0;
  // x + sum over k of weights_k results_k + the shared expert.   results [n, top_k, embed], weights [n, top_k]
  virtual at::Tensor combine(const at::Tensor& x, const at::Tensor& normed, const at::Tensor& results, const at::Tensor& weights,
                             const Call& call) const = 0;
  virtual const ExpertShape& experts() const = 0;
  virtual mesh::ParamId expert_weight() const = 0;  // the stacked weights, whose placement says who holds which expert
};
// Null: the block has no experts. It belongs to the block.
const RoutedBlock* routed_block(const Block& block);

// x + sum over the chosen experts e of g_e down_e(silu(gate_e(norm(x))) * up_e(norm(x))), plus the shared expert where there is one.
// `layers`: with experts, in the whole model.
std::unique_ptr<Block> make_moe_block(const DecoderShape& shape, BlockIo io, MoeParts parts);

}  // namespace cairn::model
