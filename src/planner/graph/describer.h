#pragma once
#include <string>
#include <vector>

#include "planner/graph/model_graph.h"

namespace cairn::planner {

// Builds a Description: cards with their operations, and parameters. Layer names are without ".weight" and ".bias".
class Describer {
 public:
  using BlockOp = model::BlockOp;

  // Starts a card.
  void card(std::string name, std::vector<std::string> reads, std::string writes) {
    description_.cards.push_back({.name = std::move(name), .reads = std::move(reads), .writes = {std::move(writes)}});
  }
  void optional_reads(const std::string& field) { description_.cards.back().optional_reads.push_back(field); }
  void operation(BlockOp one) { description_.cards.back().operations.push_back(std::move(one)); }

  mesh::ParamId parameter(const std::string& name, std::vector<int64_t> shape) {
    description_.parameters.push_back({.name = name, .shape = std::move(shape)});
    return {static_cast<int32_t>(description_.parameters.size()) - 1};
  }

  // The operation is called as the last word of the layer, where nothing else is said.
  enum class Bias { none, one };
  void product(const std::string& layer, int64_t in, int64_t out, Bias bias, std::vector<std::string> reads = {},
               const std::string& name = "") {
    BlockOp one{.name = name.empty() ? last_word(layer) : name, .kind = BlockOp::Kind::product};
    one.parameters = {parameter(layer + ".weight", {out, in})};
    if (bias == Bias::one) one.parameters.push_back(parameter(layer + ".bias", {out}));
    one.flops_per_token = 2.0 * static_cast<double>(in * out);
    one.reads = std::move(reads);
    operation(std::move(one));
  }
  // With a bias it is a LayerNorm, without an RMSNorm.
  void norm(const std::string& layer, int64_t width, Bias bias, std::vector<std::string> reads = {}) {
    BlockOp one{.name = "norm", .kind = BlockOp::Kind::norm};
    one.parameters = {parameter(layer + ".weight", {width})};
    if (bias == Bias::one) one.parameters.push_back(parameter(layer + ".bias", {width}));
    one.flops_per_token = 4.0 * static_cast<double>(width);
    one.reads = std::move(reads);
    operation(std::move(one));
  }
  void attention(std::vector<std::string> reads, int64_t heads, int64_t width, bool causal) {
    operation({.name = "attention",
               .kind = BlockOp::Kind::attention,
               .flops_per_pair = 4.0 * static_cast<double>(width),
               .reads = std::move(reads),
               .heads = heads,
               .key_heads = heads,
               .causal = causal});
  }
  void elementwise(const std::string& name, std::vector<std::string> reads = {}) {
    operation({.name = name, .kind = BlockOp::Kind::elementwise, .reads = std::move(reads)});
  }
  void add(std::vector<std::string> reads) { operation({.name = "add", .kind = BlockOp::Kind::add, .reads = std::move(reads)}); }

  Description done() { return std::move(description_); }

 private:
  static std::string last_word(const std::string& path) { return path.substr(path.rfind('.') + 1); }

  Description description_;
};

}  // namespace cairn::planner
