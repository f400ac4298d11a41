#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::planner {

// How a dim of a tensor may be split.
struct Grain {
  int64_t unit = 1;                    // indices that stay together: the width of a head
  int64_t group = 1;                   // units that stay together if there are enough groups for all ranks: the query heads of a key head
  bool shared = false;                 // with fewer units than ranks, all ranks that need a unit hold it: key heads
  std::vector<int64_t> sections = {};  // matrices stacked along the dim, each split on its own: fused q, k, v
  bool operator==(const Grain&) const = default;
};

// A tensor of an operation graph, with its global shape.
struct GraphTensor {
  enum class Kind { input, parameter, value };
  std::string name;
  std::vector<int64_t> shape;
  Kind kind = Kind::value;
  bool differentiable = true;
  bool of_samples = true;  // of an input: its first dim is the batch
  int64_t item_bytes = 4;
  std::vector<Grain> grains = {};  // by dim; empty: any index may be split off
};

// One operation: some tensors in, one out.
//
// `indices` is an einsum string: a letter for each dim, as in "bsk,nk->bsn" (activations times a weight stored [out, in]). It decides how
// the operation can run in parallel (sbp/signatures.h); the kind only says how to run and print it.
struct GraphOp {
  enum class Kind { product, attention, norm, elementwise, multiply, add, bias, scale, lookup, cross_entropy, mean, softmax, other };
  // In which inputs the output is linear: these may be partial sums, and the output then is one.
  enum class Linear { none, each, jointly };  // each: in every input alone (a product); jointly: in all together (a sum)

  std::string name = {};
  Kind kind = Kind::other;
  std::vector<int> inputs = {};
  int output = -1;
  std::string indices = {};
  std::string whole = {};  // letters that are never split: the dim that a softmax or a norm runs over
  std::string inner = {};  // letters that can be split if ranks exchange something inside: the vocabulary of a cross entropy
  Linear linear = Linear::none;
  double flops = 0;           // forward
  double inner_elements = 0;  // that each of those ranks sends to every other, for all samples
  int64_t inner_item_bytes = 4;
  std::string detail = {};  // variant of the kind: "gelu", "silu", "relu", "rms", "layer"
  int64_t heads = 0;        // of an attention: query heads, key heads
  int64_t key_heads = 0;
  bool causal = true;
};

// Tensors and operations in running order: an operation comes after those that make its inputs.
struct OpGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOp> ops;

  int add(GraphTensor tensor);
  // Adds the operation with its output; returns the index of the output.
  int add(GraphOp op, GraphTensor output);
  int find(std::string_view tensor) const;  // index; -1: not found
  std::vector<int> readers(int tensor) const;
};

// Throws bad_input if indices do not fit shapes, operations are out of order, or a name is used twice.
void check(const OpGraph& graph);

// Says how a dim of a tensor may be cut.
void set_grain(OpGraph& graph, int tensor, size_t dim, const Grain& grain);

// Hands grains on between dims that are the same index of an operation, both ways, until nothing changes: what holds for the heads of an
// attention then holds for the products that make them and read them.
void propagate_grains(OpGraph& graph);

// The letters of each input of an operation, then of its output.
std::vector<std::string> subscripts(const GraphOp& op);

// A line for each operation: "layers.0.mlp.up: product bsk,nk->bsn of hidden.0 [2, 8, 16], w [64, 16]".
std::string to_string(const OpGraph& graph);

}  // namespace cairn::planner
