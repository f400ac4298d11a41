#include "parallel/activations/recompute.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "model/model.h"
#include "model/name_pattern.h"

namespace cairn::parallel {
namespace {

std::vector<size_t> chosen_by(const RecomputeRule& rule, const model::Model& model) {
  std::vector<size_t> chosen;
  std::vector<bool> used(rule.modules.size(), false);
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    bool fits = rule.modules.empty();
    for (size_t k = 0; k < rule.modules.size(); ++k)
      if (model::matches(rule.modules[k], model.blocks()[i]->card().name)) fits = used[k] = true;
    if (fits) chosen.push_back(i);
  }
  for (size_t k = 0; k < used.size(); ++k)
    if (!used[k])
      base::fail_input("recompute.modules: \"{}\" fits no block of this model: they are called {}, {} and the like", rule.modules[k],
                       model.blocks().front()->card().name, model.blocks()[std::min<size_t>(1, model.blocks().size() - 1)]->card().name);
  return chosen;
}

// Logits become their gradient in place. Recomputed, they would exist twice, to save little.
bool makes_logits(const model::Block& block) { return std::ranges::count(block.card().writes, "logits") > 0; }

// RecomputeMode::stream: layers that cannot be computed in slices are recomputed over whole sequences. A lookup keeps no more than its
// input.
bool keeps_input_in_slices(const model::Block& block) {
  const std::vector<model::BlockOp>& operations = block.card().operations;
  return block.card().sliceable || (!operations.empty() && operations.front().kind != model::BlockOp::Kind::lookup);
}

// Recomputes as many of these blocks (those of one rank), from the first on, as it takes to stay within the budget.
void stay_within(int64_t budget_bytes, const std::vector<size_t>& blocks, const model::Model& model,
                 const std::vector<ActivationBytes>& kept, std::vector<bool>& recomputed) {
  const auto budget = static_cast<double>(budget_bytes);
  double total = 0;
  for (const size_t i : blocks) total += kept[i].all;
  for (const size_t i : blocks) {
    if (total <= budget) return;
    if (makes_logits(*model.blocks()[i])) continue;
    total -= kept[i].all - kept[i].input;
    recomputed[i] = true;
  }
  if (total > budget)
    base::fail_input("recompute.budget_mib = {}: keeping the inputs of every block alone takes {}{}: raise it, or lower train.micro_batch",
                     budget_bytes >> 20, base::human_bytes(static_cast<int64_t>(total)),
                     blocks.size() == model.blocks().size()
                         ? ""
                         : fmt::format(" on the rank that runs {}", model.blocks()[blocks.front()]->card().name));
}

}  // namespace

std::vector<bool> recomputed_blocks(const RecomputeRule& rule, const model::Model& model, const ActivationSetup& setup,
                                    const std::vector<int>& rank_of_block) {
  const size_t n = model.blocks().size();
  std::vector<bool> recomputed(n, rule.mode == RecomputeMode::full);
  if (rule.mode == RecomputeMode::selective) {
    const std::vector<size_t> chosen = chosen_by(rule, model);
    for (size_t k = 0; k < chosen.size(); ++k)
      if (static_cast<int64_t>(k) % rule.every == 0) recomputed[chosen[k]] = true;
  }
  if (rule.mode == RecomputeMode::budget) {
    std::map<int, std::vector<size_t>> by_rank;
    for (size_t i = 0; i < n; ++i) by_rank[rank_of_block.empty() ? 0 : rank_of_block[i]].push_back(i);
    const std::vector<ActivationBytes> kept = activation_bytes(model, setup);
    for (const auto& [rank, blocks] : by_rank) stay_within(rule.budget_bytes, blocks, model, kept, recomputed);
  }
  if (rule.mode == RecomputeMode::stream) {
    if (std::ranges::none_of(model.blocks(), [](const auto& block) { return block->card().sliceable; }))
      base::fail_input("recompute.mode = stream: no block of this model can be computed in slices along a sequence. Use full.");
    for (size_t i = 0; i < n; ++i) recomputed[i] = keeps_input_in_slices(*model.blocks()[i]);
  }
  for (size_t i = 0; i < n; ++i) recomputed[i] = recomputed[i] && !makes_logits(*model.blocks()[i]);
  return recomputed;
}

int64_t slice_within(int64_t budget_bytes, const model::Model& model, ActivationSetup setup, int64_t length,
                     const std::vector<int>& rank_of_block) {
  constexpr int64_t kSmallest = 16;  // smaller slices take longer and little less memory
  double peak = 0;
  for (int64_t slices = 1;; slices += std::max<int64_t>(1, slices / 8)) {
    const int64_t slice = std::max<int64_t>(1, (length + slices - 1) / slices);
    setup.slices = slices;
    const std::vector<ActivationBytes> kept = activation_bytes(model, setup);
    std::map<int, std::vector<ActivationBytes>> by_rank;
    std::map<int, std::vector<bool>> recomputed;
    for (size_t i = 0; i < kept.size(); ++i) {
      const int rank = rank_of_block.empty() ? 0 : rank_of_block[i];
      by_rank[rank].push_back(kept[i]);
      recomputed[rank].push_back(keeps_input_in_slices(*model.blocks()[i]) && !makes_logits(*model.blocks()[i]));
    }
    peak = 0;
    for (const auto& [rank, blocks] : by_rank) peak = std::max(peak, peak_activation_bytes(blocks, recomputed[rank]));
    if (peak <= static_cast<double>(budget_bytes)) return slice;
    if (slice <= kSmallest) break;
  }
  base::fail_input("recompute.budget_mib = {}: even slices of {} tokens take {}: raise it, or lower train.micro_batch", budget_bytes >> 20,
                   std::min(kSmallest, length), base::human_bytes(static_cast<int64_t>(peak)));
}

}  // namespace cairn::parallel
