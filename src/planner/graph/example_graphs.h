#pragma once
#include <cstdint>

#include "planner/graph/op_graph.h"
#include "planner/sbp/execute.h"

namespace cairn::planner {

// Small graphs in double precision that can be executed, for tests and proofs of placement inference.

// loss = mean(tanh(w2 gelu(w1 x + b1) + b2)), x [rows, in].
OpGraph mlp_graph(int64_t rows, int64_t in, int64_t hidden, int64_t out, bool biases = true);

struct BlockShape {
  int64_t batch = 2, length = 5, heads = 4, keys = 2, width = 3, mlp = 10, layers = 1, vocab = 11;
};

// A decoder: lookup, layers of attention and a gated MLP, a norm, a head, cross entropy. Layer 3's parameters are 3.g1, 3.wq, 3.wk, 3.wv,
// 3.wo, 3.g2, 3.wg, 3.wu, 3.wd; around them table, g and head.
OpGraph decoder_graph(const BlockShape& shape);

// The same graph in double: what can be run to the last digits.
OpGraph in_double(OpGraph graph);

// Values of inputs and parameters, whole, a function of the seed alone. What a lookup or a cross entropy takes as ids are whole numbers
// below its rows; places in a sequence count.
LocalTensors example_values(const OpGraph& graph, uint64_t seed = 0);

}  // namespace cairn::planner
