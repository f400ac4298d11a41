#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::model {

struct DecoderShape;
enum class TokenLayout;

// How the branches of a decoder (attention and MLP in turn) are wired to the residual stream. Branch i adds h_i to the stream x:
//
//   standard  x_i = x_{i-1} + h_i(x_{i-1})
//   ladder    x_i = x_{i-1} + h_i(x_{i-2}) in the ladder layers (ladder residual, arXiv:2501.06589). The tensor-parallel all-reduce of
//             one branch is in flight while the next branch computes.
//   parallel  x' = x + attention(x) + mlp(x) in each layer (PaLM): one all-reduce per layer instead of two.
//
// A wiring is another function of the same parameters. Weights of one wiring need further training before another can use them.
inline const std::vector<std::string> kWirings{"standard", "ladder", "parallel"};

bool is_standard(const std::string& wiring);
bool is_ladder(const std::string& wiring);
// Goes before the architecture in config.json ("LadderLlamaForCausalLM"), so that no other program takes it for the standard wiring.
std::string architecture_prefix(const std::string& wiring);

// The layers that "all", "last 8", "last 0" or "0,2,5" names, in ascending order. Refuses a text that names a layer beyond the model's
// `layers`; `key` is the recipe key in the message.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers, const std::string& key = "model.ladder_layers");

// The inverse of parse_layers.
std::string format_layers(const std::vector<int64_t>& named, int64_t layers);

// The values of the stream that one branch reads, adds to and writes.
struct BranchWiring {
  std::string reads;  // through its norm
  std::string onto;   // what its result is added to
  std::string writes;
  std::string with = {};  // the terms of another branch, reduced together with its own; empty: none
  bool sums = true;       // false: it writes its unreduced terms, and another branch reduces them
};

// Whether the stream's tokens are sharded along tp or replicated (decoder/residual_stream.h).
TokenLayout token_layout(const DecoderShape& shape);

// The branches in running order, two for each layer.
std::vector<BranchWiring> branch_wiring(const DecoderShape& shape);

}  // namespace cairn::model
