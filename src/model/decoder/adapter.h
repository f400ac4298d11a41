// The seam of adapters: trained additions to one linear layer.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "model/call.h"
#include "model/decoder/adapter_shape.h"

namespace cairn::model {

struct BlockOp;

// Adds a function of a layer's input to the outputs of one of the layer's neighbours. x [rows, in] and y [rows, out] are this rank's parts
// of input and output. `first_row`: the place of their first row among the tokens of the call, whose keys decide the dropout.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  virtual void add_output(const at::Tensor& y, const at::Tensor& x, int64_t first_row, const Call& call) const = 0;
  // Adds the gradient of x.
  virtual void input_gradient(const at::Tensor& dx, const at::Tensor& dy, int64_t first_row, const Call& call) const = 0;
  // x and dy are of all tokens of the call.
  virtual void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const = 0;
  // What is added, [..., out]; differentiable, without dropout.
  virtual at::Tensor plain(const at::Tensor& x, const Call& call) const = 0;
  virtual std::vector<mesh::ParamId> parameters() const = 0;
  // Adds what planners need to know to the card entry of the layer.
  virtual void describe(BlockOp& operation) const = 0;
};

// One adapter and the weight among the layer's neighbours whose outputs it adds to.
struct PlacedAdapter {
  std::shared_ptr<const LinearAdapter> adapter;
  int32_t place = 0;
};

// What adapters need to know of the weight that they are added to.
struct AdaptedWeight {
  std::string name;         // of the layer
  mesh::ParamId weight;     // placed along tp; a single one of the neighbours
  int64_t in = 0, out = 0;  // of the whole weight
  bool fan_in_fan_out = false;
};

// y += scale (x a^T) b^T with a [rank, in], b [out, rank].
std::shared_ptr<const LinearAdapter> make_low_rank_adapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b);

// The same, with a and b from pools a [rows, in / shards] and b [rows, out / shards] (pool_index.h). `buffer`: the names under which the
// indices of all layers are buffers of the model, without ".a" and ".b".
std::shared_ptr<const LinearAdapter> make_pooled_adapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b,
                                                         std::string buffer, int64_t layer);

// The same, with a and b that may be split into modules (adapter_matrix.h).
class AdapterMatrix;
std::shared_ptr<const LinearAdapter> make_module_adapter(const AdapterShape& shape, AdaptedWeight of, AdapterMatrix a, AdapterMatrix b);

}  // namespace cairn::model
