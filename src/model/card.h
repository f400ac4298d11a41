#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/gradients.h"

namespace cairn::model {

// One operation of a block, as placement, recompute, swap and cost rules see it. Costs are per token of the pass; `per_pair` ones
// are per pair of a query and a key that it sees.
struct BlockOp {
  enum class Kind { product, attention, norm, elementwise, multiply, add, lookup, other };
  std::string name;
  Kind kind = Kind::other;
  std::vector<mesh::ParamId> parameters = {};
  std::vector<std::string> axes = {};  // logical axes of its output, outermost first
  double flops_per_token = 0;          // forward; the two gradients of a product cost as much each
  double flops_per_pair = 0;
  double saved_elements_per_token = 0;   // kept for backward
  double result_elements_per_token = 0;  // of those: what it came to, for the product after it, of which codes stand for it in eight bits
  bool recomputed_on_gpu = false;        // a GPU does not keep that: it makes it once more on its way back
  // What it takes: values that the block reads, or operations before it (all results of one that makes several; "qkv.2" is the third of
  // them). Empty: the operation before it, or the block's first value. The last operation makes what the block writes first.
  //
  // Of these it makes: a product, one result for each of its weights (its first parameter and the neighbours of that; then come biases,
  // then pairs of adapters); a norm and an elementwise operation, one for each value they take; an attention (of queries, keys and values,
  // or of all three stacked, and of a bias), a multiplication, an addition and any other, one of all of them.
  std::vector<std::string> reads = {};
  bool fan_in_fan_out = false;  // of a product: its weight is stored [in, out]
  int64_t heads = 0;            // of an attention: of queries, and of keys
  int64_t key_heads = 0;
  bool causal = true;  // likewise: a query sees the keys before it only
  int64_t width = 0;   // of the result, where neither parameters nor inputs tell; of a multiplication of parts stacked in one value, too
  bool by_sample = false;             // of an `other`: samples do not see each other
  std::vector<int32_t> adapted = {};  // of a product: which of its weights each pair of adapters is for
  double adapter_scale = 1;
};

// What a block is, without its code: the values it reads and writes and its operations in order.
struct Card {
  std::string name = {};  // "layers.3.attention"
  std::vector<std::string> reads = {};
  std::vector<std::string> writes = {};
  std::vector<std::string> optional_reads = {};  // fields of a batch that it takes notice of where they are there
  std::vector<BlockOp> operations = {};
  std::vector<std::string> buffers = {};
  bool fused_backward = false;  // both gradients come from one backward run (autograd inside); they cannot be placed apart
};

}  // namespace cairn::model
