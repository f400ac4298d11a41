// The router of a layer with experts: which experts a token goes to, and how much each result counts.
//
//   l = W x          in fp32, one logit per expert
//   p = softmax(l)
//   chosen: the top_k experts of largest p (with a bias: of p + b; b does not count otherwise), ties to the lower id
//   g_i = p_i, or p_i / sum of p over the chosen (normalize)
//
// Its own losses, for each sequence s of n_s tokens that count (those with a target), as sums over these tokens:
//
//   aux  sum over s of E / (k n_s) sum over e of c_se P_se      c_se: slots of s that chose e, P_se: sum of p_e over its tokens
//        (Switch Transformer, arXiv:2101.03961; by sequence as in DeepSeek-V3, arXiv:2412.19437). It is n_s where the load is even.
//   z    sum over tokens of (log sum over e of exp l_e)^2       (ST-MoE, arXiv:2202.08906)
#pragma once
#include <string_view>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "model/experts/shape.h"
#include "model/saved.h"
#include "model/values.h"

namespace cairn::model {

// Of the tokens of one call, [tokens] each. Undefined: the call has no losses.
struct TokenSequences {
  at::Tensor sequence;  // int64: the sequence of each token, numbered over the micro-batch; -1 for tokens without a target
  at::Tensor tokens;    // int64 [sequences]: n_s, over all ranks that hold tokens of them
  static TokenSequences in(Values& values, const Call& call);
  static TokenSequences in(const Saved& saved);
  void save(Saved& keep) const;
};

struct Routing {
  at::Tensor logits, probabilities;  // [tokens, experts] fp32, or double
  at::Tensor ids;                    // int64 [tokens, top_k]
  at::Tensor weights;                // [tokens, top_k]: g
};

class Router {
 public:
  Router(const ExpertShape& shape, int64_t layers, mesh::ParamId weight) : shape_(shape), layers_(layers), weight_(weight) {}

  mesh::ParamId weight() const { return weight_; }
  // x [tokens, embed]. `bias` [experts], undefined: none. Differentiable, but for the choice.
  Routing route(const at::Tensor& x, const at::Tensor& bias, const Call& call) const;
  // Reports the losses of the routing in Call::terms. Differentiable.
  void add_terms(const Routing& routing, const TokenSequences& sequences, const Call& call, std::string_view block) const;
  // For the gradients: the part of them that add_terms has made already, [tokens, experts].
  void save(const Routing& routing, Saved& keep) const;

  // The gradient of the logits, from that of the weights [tokens, top_k] and of the losses.
  at::Tensor logits_gradient(const at::Tensor& dweights, Saved& saved, const Call& call, std::string_view block) const;
  // Adds the gradient of x, in its own precision.
  void add_input_gradient(const at::Tensor& dx, const at::Tensor& dlogits, const Call& call) const;

 private:
  // d aux / d p by token and expert; 0 for tokens that do not count.
  at::Tensor balance_of(const at::Tensor& ids, const TokenSequences& sequences, const at::Tensor& like, const Call& call,
                        std::string_view block) const;
  at::Tensor chosen_weights(const at::Tensor& probabilities, const at::Tensor& ids) const;

  ExpertShape shape_;
  int64_t layers_;  // with experts, in the whole model
  mesh::ParamId weight_;
};

}  // namespace cairn::model
