#include "model/experts/router.h"

#include <string>
#include <utility>

#include <ATen/ops/logsumexp.h>

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/expert_routing.h"
#include "kernels/low_precision.h"
#include "model/context/layout.h"
#include "model/decoder/residual_stream.h"
#include "model/experts/balance.h"
#include "model/loss_terms.h"

namespace cairn::model {
namespace {

// The groups whose ranks hold other tokens of the same sequences.
std::vector<comm::Group*> sequence_groups(const Call& call) {
  std::vector<comm::Group*> groups;
  if (const ContextLayout* context = call.slice.context)
    if (comm::Group* cp = context->group ? context->group : call.axes.find("cp")) groups.push_back(cp);
  if (comm::Group* tp = call.axes.find("tp"); tp && layout_in(call, TokenLayout::sharded) == TokenLayout::sharded) groups.push_back(tp);
  return groups;
}

// Ranks along tp report a loss each, and each counts as its share of it.
double shares_of_loss(const Call& call) {
  comm::Group* const tp = call.axes.find("tp");
  return tp && layout_in(call, TokenLayout::sharded) == TokenLayout::sharded ? tp->size() : 1;
}

}  // namespace

TokenSequences TokenSequences::in(Values& values, const Call& call) {
  if (!values.has("sequences")) return {};
  at::Tensor sequence = values.get("sequences").reshape({-1, 1});
  if (layout_in(call, TokenLayout::sharded) == TokenLayout::sharded) sequence = local_tokens(sequence, call);
  return {sequence.reshape({-1}), values.get("sequence_tokens")};
}

TokenSequences TokenSequences::in(const Saved& saved) {
  return saved.has("sequence") ? TokenSequences{saved.get("sequence"), saved.get("sequence_tokens")} : TokenSequences{};
}

void TokenSequences::save(Saved& keep) const {
  if (sequence.defined()) keep.put("sequence", sequence), keep.put("sequence_tokens", tokens);
}

at::Tensor Router::chosen_weights(const at::Tensor& probabilities, const at::Tensor& ids) const {
  const at::Tensor chosen = probabilities.gather(1, ids);
  return shape_.normalize ? chosen / chosen.sum(1, /*keepdim=*/true) : chosen;
}

Routing Router::route(const at::Tensor& x, const at::Tensor& bias, const Call& call) const {
  Routing routing;
  routing.logits = at::linear(kernels::widened(x), kernels::widened(call.weights.get(weight_)));
  routing.probabilities = routing.logits.softmax(1);
  const at::Tensor scores = routing.probabilities.detach();
  routing.ids = kernels::top_k(bias.defined() ? scores + bias.to(scores.scalar_type()) : scores, shape_.top_k);
  routing.weights = chosen_weights(routing.probabilities, routing.ids);
  return routing;
}

at::Tensor Router::balance_of(const at::Tensor& ids, const TokenSequences& sequences, const at::Tensor& like, const Call& call,
                              std::string_view block) const {
  const int64_t experts = shape_.count, count = sequences.tokens.size(0);
  const at::Tensor has_target = sequences.sequence.ge(0), sequence = sequences.sequence.clamp_min(0);
  // By sequence and expert, on all ranks with tokens of these sequences. Sums of integers: every order gives the same.
  const at::Tensor choices = at::zeros({count * experts}, ids.options());
  choices.scatter_add_(0, (sequence.unsqueeze(1) * experts + ids).reshape({-1}),
                       has_target.to(at::kLong).unsqueeze(1).expand(ids.sizes()).reshape({-1}));
  for (comm::Group* group : sequence_groups(call)) group->all_reduce(choices, comm::Reduce::sum, {comm::Purpose::activation, block}).wait();
  const at::Tensor scale =
      static_cast<double>(experts) / (static_cast<double>(shape_.top_k) * sequences.tokens.clamp_min(1).to(like.scalar_type()));
  const at::Tensor by_sequence = choices.view({count, experts}).to(like.scalar_type()) * scale.unsqueeze(1);
  return by_sequence.index_select(0, sequence) * has_target.unsqueeze(1).to(like.scalar_type());
}

void Router::add_terms(const Routing& routing, const TokenSequences& sequences, const Call& call, std::string_view block) const {
  if (!call.terms || !sequences.sequence.defined()) return;
  const at::Tensor& p = routing.probabilities;
  const double share = shares_of_loss(call) / static_cast<double>(layers_);
  const at::Tensor has_target = sequences.sequence.ge(0).to(p.scalar_type());
  const at::Tensor log_sums = at::logsumexp(routing.logits, {1});
  call.terms->add("aux_loss", (balance_of(routing.ids, sequences, p, call, block) * p).sum() * share, shape_.aux_weight);
  call.terms->add("z_loss", (log_sums.square() * has_target).sum() * share, shape_.z_weight);
  if (call.needs.weights) count_choices(block, routing.ids, sequences.sequence, shape_.count, call);
}

void Router::save(const Routing& routing, Saved& keep) const {
  keep.put("ids", routing.ids), keep.put("probabilities", routing.probabilities);
  if (shape_.z_weight > 0) keep.put("log_sums", at::logsumexp(routing.logits, {1}));
}

at::Tensor Router::logits_gradient(const at::Tensor& dweights, Saved& saved, const Call& call, std::string_view block) const {
  const at::Tensor p = saved.take("probabilities"), ids = saved.take("ids");
  at::Tensor dchosen = dweights.to(p.scalar_type());
  if (shape_.normalize) {
    const at::Tensor chosen = p.gather(1, ids), sum = chosen.sum(1, /*keepdim=*/true);
    dchosen = (dchosen - (dchosen * chosen / sum).sum(1, /*keepdim=*/true)) / sum;
  }
  const at::Tensor dp = at::zeros_like(p).scatter_(1, ids, dchosen);
  const TokenSequences sequences = TokenSequences::in(saved);
  const double weight = call.loss_weight / static_cast<double>(layers_);
  const bool has_terms = sequences.sequence.defined() && call.loss_weight != 0;
  if (has_terms && shape_.aux_weight > 0) dp.add_(balance_of(ids, sequences, p, call, block), shape_.aux_weight * weight);
  const at::Tensor dlogits = p * (dp - (dp * p).sum(1, /*keepdim=*/true));
  if (has_terms && shape_.z_weight > 0) {
    const at::Tensor has_target = sequences.sequence.ge(0).to(p.scalar_type());
    dlogits.add_(p * (saved.take("log_sums") * has_target).unsqueeze(1), 2 * shape_.z_weight * weight);
  }
  return dlogits;
}

void Router::add_input_gradient(const at::Tensor& dx, const at::Tensor& dlogits, const Call& call) const {
  dx.add_(at::mm(dlogits, kernels::widened(call.weights.get(weight_))));
}

}  // namespace cairn::model
