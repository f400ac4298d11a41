#include <cmath>

#include <fmt/format.h>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "study/prune/prune.h"

namespace cairn::study {
namespace {

double share_of(int64_t part, int64_t all) { return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all); }

base::OrderedJson or_null(double value) { return std::isfinite(value) ? base::OrderedJson(value) : base::OrderedJson(); }

base::OrderedJson pruning_json(const LayerwiseResult& pruned) {
  base::OrderedJson layers = base::OrderedJson::array();
  for (const LayerPruned& one : pruned.layers)
    layers.push_back({{"name", one.name},
                      {"sparsity", share_of(one.removed, one.weights)},
                      {"error_before", or_null(one.error_before)},
                      {"error_after", or_null(one.error_after)},
                      {"output_square", one.output_square},
                      {"trained", one.trained}});
  return {{"layers", layers},
          {"peak_bytes", pruned.peak_bytes},
          {"largest_part_bytes", pruned.largest_part_bytes},
          {"activation_bytes", pruned.activation_bytes},
          {"model_bytes", pruned.model_bytes}};
}

std::string loss_text(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-"; }

}  // namespace

void write_prune_report(const PruneResult& result, const PruneRecipe& recipe, const std::filesystem::path& out) {
  const PruneOptions& o = recipe.options;
  base::OrderedJson json{{"method", base::enum_name(kPruneMethodNames, o.method)},
                         {"pattern", o.pattern},
                         {"recover", base::enum_name(kRecoverModeNames, o.recover.mode)},
                         {"train", o.recover.train},
                         {"parameters", result.parameters},
                         {"dense_loss", or_null(result.dense_loss)},
                         {"loss_peak_bytes", result.loss_peak_bytes},
                         {"rounds", base::OrderedJson::array()},
                         {"model", result.model.string()}};
  for (const PruneRound& one : result.rounds) {
    base::OrderedJson round{{"sparsity", share_of(one.removed, one.weights)},
                            {"weights", one.weights},
                            {"removed", one.removed},
                            {"trained", one.trained},
                            {"pruned_loss", or_null(one.pruned_loss)},
                            {"recovered_loss", or_null(one.recovered_loss)},
                            {"merged_loss", or_null(one.merged_loss)},
                            {"prune_seconds", one.prune_seconds},
                            {"recover_seconds", one.recover_seconds}};
    if (!one.pruned.layers.empty()) round["pruning"] = pruning_json(one.pruned);
    json["rounds"].push_back(std::move(round));
  }
  base::write_atomically(out / "results.json", base::pretty(json) + "\n");
}

std::string to_tables(const PruneResult& result) {
  std::string text = fmt::format("dense loss {}\n", loss_text(result.dense_loss));
  text += fmt::format("{:>8} {:>9} {:>9} {:>9} {:>9} {:>12} {:>9} {:>9}\n", "sparsity", "pruned", "recovered", "merged", "trained", "share",
                      "prune s", "recover s");
  for (const PruneRound& one : result.rounds)
    text += fmt::format("{:>8.4f} {:>9} {:>9} {:>9} {:>9} {:>11.3f}% {:>9.1f} {:>9.1f}\n", share_of(one.removed, one.weights),
                        loss_text(one.pruned_loss), loss_text(one.recovered_loss), loss_text(one.merged_loss),
                        base::human_count(static_cast<double>(one.trained)), 100 * share_of(one.trained, result.parameters),
                        one.prune_seconds, one.recover_seconds);
  const LayerwiseResult* const last = result.rounds.empty() ? nullptr : &result.rounds.back().pruned;
  if (last && !last->layers.empty() && std::isfinite(last->layers.front().error_after)) {
    text += fmt::format("\n{:<12} {:>9} {:>13} {:>13} {:>9}\n", "layer", "sparsity", "error pruned", "repaired", "relative");
    for (const LayerPruned& one : last->layers)
      text += fmt::format("{:<12} {:>9.4f} {:>13.4g} {:>13.4g} {:>9.4f}\n", one.name, share_of(one.removed, one.weights), one.error_before,
                          one.error_after, one.error_after / one.output_square);
  }
  if (last && last->peak_bytes > 0)
    text +=
        fmt::format("\npeak memory of the layer-wise pass {} (model {}, largest part {}, activations {}), of losses {}\n",
                    base::human_bytes(last->peak_bytes), base::human_bytes(last->model_bytes), base::human_bytes(last->largest_part_bytes),
                    base::human_bytes(last->activation_bytes), base::human_bytes(result.loss_peak_bytes));
  return text + fmt::format("model: {}", result.model.string());
}

}  // namespace cairn::study
