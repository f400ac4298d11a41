#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::planner {

// What may be cut along a dim of a tensor.
struct Grain {
  int64_t unit = 1;     // indices that stay together: those of one head
  int64_t group = 1;    // units that stay together where there are enough groups for all ranks: query heads of a key head
  bool shared = false;  // with fewer units than ranks, ranks that need the same unit hold it together: key heads
  std::vector<int64_t> sections =
      {};  // several matrices stacked along the dim, each cut on its own: queries, keys and values of one weight
  bool operator==(const Grain&) const = default;
};

// A tensor of an operation graph, as one process would see it.
struct GraphTensor {
  enum class Kind { input, parameter, value };
  std::string name;
  std::vector<int64_t> shape;
  Kind kind = Kind::value;
  bool differentiable = true;
  bool of_samples = true;  // of an input: its first dim counts samples
  int64_t item_bytes = 4;
  std::vector<Grain> grains = {};  // by dim; empty: single indices along all of them
};

// One operation: some tensors in, one out.
//
// `indices` says what each dim of each tensor means, a letter for each, as in "bsk,nk->bsn" (a product of activations with a weight stored
// [out, in]). From it follows how the operation may be shared out over ranks (signatures.h); the kind only says how to run it and print it.
struct GraphOp {
  enum class Kind { product, attention, norm, elementwise, multiply, add, bias, scale, lookup, cross_entropy, mean, softmax, other };
  // Of which inputs the output is a linear function: it may then be computed from terms of a sum, and yields terms.
  enum class Linear { none, each, jointly };  // each: in every one alone (a product); jointly: in all together (a sum)

  std::string name = {};
  Kind kind = Kind::other;
  std::vector<int> inputs = {};
  int output = -1;
  std::string indices = {};
  std::string whole = {};  // letters that are never shared out: the dim a softmax or a norm runs over
  std::string inner =
      {};  // letters that may be shared out where ranks exchange something inside the operation: the vocabulary of a cross entropy
  Linear linear = Linear::none;
  double flops = 0;           // forward
  double inner_elements = 0;  // that each of these ranks sends to every other, for all samples together
  int64_t inner_item_bytes = 4;
  std::string detail = {};  // what the kind leaves open: "gelu", "silu", "relu", "rms", "layer"
  int64_t heads = 0;        // of an attention: of queries, and of keys
  int64_t key_heads = 0;
  bool causal = true;
};

// Tensors and operations in running order: an operation stands after those that make its inputs.
struct OpGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOp> ops;

  int add(GraphTensor tensor);
  // Adds the operation with its output; returns the output's place.
  int add(GraphOp op, GraphTensor output);
  int find(std::string_view tensor) const;  // -1: there is none
  std::vector<int> readers(int tensor) const;
};

// Refuses a graph whose indices do not fit its shapes, whose ops are out of order or whose names are not one each.
void check(const OpGraph& graph);

// Says how a dim of a tensor may be cut.
void set_grain(OpGraph& graph, int tensor, size_t dim, const Grain& grain);

// Hands grains on between dims that are the same index of an operation, both ways, until nothing changes: what holds for the heads of an
// attention then holds for the products that make them and read them.
void propagate_grains(OpGraph& graph);

// The letters of each input of an operation, then of its output.
std::vector<std::string> letters(const GraphOp& op);

// A line for each operation: "layers.0.mlp.up: product bsk,nk->bsn of hidden.0 [2, 8, 16], w [64, 16]".
std::string to_string(const OpGraph& graph);

}  // namespace cairn::planner
