// The blocks that run the experts of an ensemble: from "tokens" to "mixture" [batch, length, all widths + experts], the hidden states of
// all experts followed by log q for the next token.
#pragma once
#include <memory>

#include "base/check.h"
#include "evaluate/ensemble/experts.h"
#include "evaluate/ensemble/posterior.h"
#include "model/block.h"

namespace cairn::evaluate {

// A block without backward.
class FrozenBlock : public model::Block {
 public:
  const model::Card& card() const override { return card_; }
  void backward_input(model::Values&, model::Saved&, const model::Call&) const override { refuse(); }
  void backward_weight(model::Saved&&, mesh::Gradients&, const model::Call&) const override { refuse(); }
  void plain(model::Values& values, const model::Call& call) const override { forward(values, nullptr, call); }

 protected:
  model::Card card_;

 private:
  [[noreturn]] static void refuse() { base::fail_input("an ensemble cannot be trained: train its experts one by one"); }
};

// State in the cache: each expert's log probabilities for the next token, [rows, experts, vocab]. The mixing block writes it, so that the
// next call can update the posterior without computing logits again.
inline constexpr const char* kLastLogProbs = "ensemble.last_log_probs";

// All experts read every token. Nothing waits for the device, and the state of a sequence has constant size.
std::unique_ptr<model::Block> make_all_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options);

// Only the top_k experts read a token; the others catch up at the next refresh.
std::unique_ptr<model::Block> make_top_k_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options);

}  // namespace cairn::evaluate
