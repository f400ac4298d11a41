// How an ensemble reads: tokens to the hidden states of all experts and, behind them, log q for the token after each:
// "mixture" [batch, length, all widths + experts].
#pragma once
#include <memory>

#include "base/check.h"
#include "evaluate/ensemble/experts.h"
#include "evaluate/ensemble/posterior.h"
#include "model/block.h"

namespace cairn::evaluate {

// A block that is not to be trained.
class FrozenBlock : public model::Block {
 public:
  const model::Card& card() const override { return card_; }
  void backward_input(model::Values&, model::Saved&, const model::Call&) const override { refuse(); }
  void backward_weight(model::Saved&&, mesh::Gradients&, const model::Call&) const override { refuse(); }
  void plain(model::Values& values, const model::Call& call) const override { forward(values, nullptr, call); }

 protected:
  model::Card card_;

 private:
  [[noreturn]] static void refuse() { base::fail_input("an ensemble is not trained: train its experts, each for itself"); }
};

// What each expert said last of the token to come, as logs, [rows, experts, vocab]: whoever mixes leaves it among the states of a cache, so
// that how well it was foreseen is known without asking again.
inline constexpr const char* kLastLogProbs = "ensemble.last_log_probs";

// All experts read every token. Nothing waits for the device, and all that is kept of a sequence is where it stands.
std::unique_ptr<model::Block> make_all_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options);

// A token is read by the experts that count; the others catch up at the next refresh.
std::unique_ptr<model::Block> make_top_k_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options);

}  // namespace cairn::evaluate
