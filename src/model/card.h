#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/gradients.h"

namespace cairn::model {

class WeightForm;

// One operation of a block, as rules for placement, recomputation, offload and cost see it. Costs are per token of the pass; `per_pair`
// costs are per pair of a query and a key that it sees.
struct BlockOp {
  enum class Kind { product, attention, norm, elementwise, multiply, add, lookup, other };  // product: a linear layer
  std::string name;
  Kind kind = Kind::other;
  std::vector<mesh::ParamId> parameters = {};
  std::vector<std::string> axes = {};  // logical axes of its output, outermost first
  double flops_per_token = 0;          // forward; each of the two gradients of a product costs the same again
  double flops_per_pair = 0;
  double saved_elements_per_token = 0;   // kept for backward
  double result_elements_per_token = 0;  // of these, the elements that fp8 replaces by codes
  bool recomputed_on_gpu = false;        // a GPU does not keep those: its backward kernel recomputes them
  // The inputs: values that the block reads, or earlier operations by name. "qkv" is all results of an operation that makes several,
  // "qkv.2" is the third. Empty: the operation before, or the block's first value. The last operation makes the block's first output.
  //
  // The outputs: a product makes one for each of its weights (its first parameter and the neighbours of that; biases come next, then pairs
  // of adapters). A norm and an elementwise operation make one for each input. An attention (of queries, keys and values, or of all three
  // stacked, and of a bias), a multiplication, an addition and `other` make one output of all inputs.
  std::vector<std::string> reads = {};
  bool fan_in_fan_out = false;  // product: the weight is stored [in, out]
  int64_t heads = 0;            // attention: query heads; other: heads that do not see each other, in all inputs and the output
  int64_t key_heads = 0;        // attention: key heads
  bool causal = true;           // attention: a query sees only keys before it
  int64_t width = 0;       // of the result, where neither parameters nor inputs determine it; also for a multiplication of stacked parts
  bool by_sample = false;  // other: samples do not see each other
  std::vector<int32_t> adapted = {};  // product: the index of the weight that each pair of adapters belongs to
  double adapter_scale = 1;
  bool pooled = false;  // product: its adapters are put together from parameters of many layers, which are never sharded
  // product: what each of its weights is made of (decoder/weight_form.h); empty: all are plain parameters. The first of `parameters` are
  // the dense weights where the model has them, and the forms' own parameters come last.
  std::vector<std::shared_ptr<const WeightForm>> forms = {};
};

// How the tokens of the residual stream lie along tp (decoder/residual_stream.h).
//   sharded     each rank has its tokens: [1, local tokens, embed]
//   replicated  every rank has all of them: [batch, length, embed]
enum class TokenLayout { sharded, replicated };

// A description of a block without its code: the values it reads and writes, and its operations in order. Planners read cards.
struct Card {
  std::string name = {};  // "layers.3.attention"
  std::vector<std::string> reads = {};
  std::vector<std::string> writes = {};
  std::vector<std::string> optional_reads = {};  // batch fields that it uses where they exist
  std::vector<BlockOp> operations = {};
  std::map<std::string, TokenLayout> streams = {};  // of the values that it writes, those of the residual stream
  std::vector<std::string> buffers = {};
  int64_t rows = 1;             // so many rows of its values for each sequence of the batch (parallel streams)
  bool sliceable = false;       // its calls may cover slices of the sequences, later slices after earlier ones (StreamBP)
  bool fused_backward = false;  // both gradients come from one backward run (autograd inside), so a schedule cannot place them apart
};

}  // namespace cairn::model
