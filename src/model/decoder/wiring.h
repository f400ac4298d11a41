#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::model {

struct DecoderShape;
enum class TokenLayout;

// How the branches of a decoder (attention and MLP in turn) are wired to its residual stream x_0, x_1, ... of which each adds one:
//
//   standard  x_i = x_{i-1} + h_i(x_{i-1})
//   ladder    x_i = x_{i-1} + h_i(x_{i-2}), in some or all layers: what ranks along tp sum up for one branch is on its way while the next
//             one computes
//   parallel  x' = x + attention(x) + mlp(x) in each layer: one sum where there were two
//
// It is another function of the same parameters: weights of one wiring have to be trained further for another.
inline const std::vector<std::string> kWirings{"standard", "ladder", "parallel"};

// Layers that "all", "last 8", "last 0" or "0,2,5" names, in order. Refuses what names none of a model of so many, by the recipe's key.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers, const std::string& key = "model.ladder_layers");

// And back.
std::string format_layers(const std::vector<int64_t>& named, int64_t layers);

// One branch: which values of the stream it reads, adds to and writes.
struct BranchWiring {
  std::string reads;  // through its norm
  std::string onto;   // what its result is added to
  std::string writes;
  std::string with = {};  // terms of another branch that are summed up with its own; empty: none
  bool sums = true;       // false: it writes its terms alone, for another to sum up
};

// Whether ranks along tp share the stream's tokens out, or each has them all (decoder/residual_stream.h).
TokenLayout token_layout(const DecoderShape& shape);

// The branches in running order, two for each layer.
std::vector<BranchWiring> branch_wiring(const DecoderShape& shape);

}  // namespace cairn::model
