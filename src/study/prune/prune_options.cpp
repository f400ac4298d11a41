#include "study/prune/prune_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"

namespace cairn::study {
namespace {

const std::vector<std::string> kSubsets{"bias", "norm", "head", "mask_lora", "scale_lora", "lora_prune", "lora", "full"};

bool trains(const RecoverOptions& o, const char* subset) { return std::count(o.train.begin(), o.train.end(), subset) > 0; }

void check_recover(const PruneOptions& all) {
  const RecoverOptions& o = all.recover;
  if (o.mode == RecoverMode::none) return;
  if (o.train.empty())
    base::fail_input("prune.recover.train = []: nothing would be trained. Name some of {}, or set prune.recover.mode = \"none\".",
                     fmt::join(kSubsets, ", "));
  for (const std::string& one : o.train)
    if (std::count(kSubsets.begin(), kSubsets.end(), one) == 0) base::fail_unknown("prune.recover.train", one, kSubsets);
  std::vector<std::string> forms;
  for (const char* one : {"mask_lora", "scale_lora", "lora_prune", "lora"})
    if (trains(o, one)) forms.emplace_back(one);
  if (forms.size() > 1)
    base::fail_input("prune.recover.train: {} are forms of the same weights. Choose one of them.", fmt::join(forms, " and "));
  if (trains(o, "lora") && all.exported == PruneExport::sparse)
    base::fail_input(
        "prune.recover.train: lora cannot be merged into sparse weights: it would fill what was pruned. Use mask_lora or lora_prune, or "
        "set "
        "prune.export = \"adapter\".");
  if (trains(o, "lora") && o.mode == RecoverMode::reconstruct)
    base::fail_input("prune.recover.train: lora stays beside the weights, and a layer is merged when it is repaired. Use mask_lora.");
  if (o.mode == RecoverMode::reconstruct && all.rounds > 1)
    base::fail_input("prune.rounds = {}: layers are repaired in one round. Use prune.recover.mode = \"retrain\", or rounds = 1.",
                     all.rounds);
}

}  // namespace

PrunePattern PruneOptions::parsed_pattern() const {
  if (pattern == "unstructured") return {};
  PrunePattern found;
  const size_t colon = pattern.find(':');
  const auto number = [&](size_t begin, size_t end, int64_t& into) {
    const char *first = pattern.data() + begin, *last = pattern.data() + end;
    const auto [stop, error] = std::from_chars(first, last, into);
    return error == std::errc() && stop == last;
  };
  if (colon == std::string::npos || !number(0, colon, found.n) || !number(colon + 1, pattern.size(), found.m) || found.n < 1 ||
      found.m <= found.n || found.m > 64)
    base::fail_input("prune.pattern = \"{}\": write \"unstructured\", or n:m such as \"2:4\": n of every m inputs are removed", pattern);
  return found;
}

bool PruneOptions::compares_rows() const {
  return compare == PruneCompare::automatic ? method == PruneMethod::wanda : compare == PruneCompare::row;
}

bool PruneOptions::needs_activations() const {
  return method == PruneMethod::wanda || method == PruneMethod::sparsegpt || recover.mode == RecoverMode::reconstruct;
}

base::Schema<PruneOptions> prune_schema() {
  using O = PruneOptions;
  return {
      "prune",
      "`cairn prune`: which weights of the linear layers of model.from are removed. Masks are saved beside the weights.",
      {{"method", &O::method,
        "What makes a weight worth keeping. magnitude: its size. wanda: its size times the norm of its input. sparsegpt: the error without "
        "it, which the weights left over also correct. random: chance (a control).",
        kPruneMethodNames},
       {"sparsity", &O::sparsity, "The share of the weights of each layer that is removed.", base::between(0, 1)},
       {"pattern", &O::pattern, "unstructured, or n:m (2:4, 4:8): in every group of m inputs n weights are removed."},
       {"compare", &O::compare, "Weights compete in the whole layer or for each output (row) alone. auto: row for wanda, else layer.",
        kPruneCompareNames},
       {"rounds", &O::rounds, "Sparsity is raised in so many rounds, each with a recovery of its own (iterative magnitude pruning).",
        base::between(1, 100)},
       {"calibration", &O::calibration, "Training samples that statistics and reconstruction read.", base::at_least(1)},
       {"calibration_batch", &O::calibration_batch, "Of these, so many are computed at a time.", base::at_least(1)},
       {"seed", &O::seed, "Of the calibration samples, of random masks and of new factors.", base::at_least(0)},
       {"activations", &O::activations, "Where the activations of all calibration samples wait between layers.", kActivationPlaceNames},
       {"memory_limit_mb", &O::memory_limit_mb,
        "While layers are pruned and losses are measured, tensors take at most so many MiB of the host's memory: one that would take more "
        "is refused before it is allocated. Retraining is not limited. 0: no limit.",
        base::at_least(0)},
       {"export", &O::exported,
        "sparse: an ordinary model with zeros. adapter: the sparse model, and the LoRA adapters of train = [\"lora\"] beside it.",
        kPruneExportNames}}};
}

base::Schema<RecoverOptions> recover_schema() {
  using O = RecoverOptions;
  return {
      "prune.recover",
      "`cairn prune`: how the quality that pruning cost is won back.",
      {{"mode", &O::mode,
        "retrain: a run of the recipe with the subset below. reconstruct: layer after layer, each learns the outputs of its dense form. "
        "none: the pruned model is the result.",
        kRecoverModeNames},
       {"train", &O::train,
        "What is trained: bias, norm, head (LoRA), and one of mask_lora, scale_lora, lora_prune (LoRA, masked when it is merged) and lora "
        "(which stays beside the weights). full: everything."},
       {"rank", &O::rank, "Of the low-rank forms.", base::between(1, 65536)},
       {"alpha", &O::alpha, "Low-rank forms are scaled by alpha / rank.", base::more_than(0)},
       {"steps", &O::steps, "Steps of the retraining, or of each layer's reconstruction.", base::at_least(1)},
       {"learning_rate", &O::learning_rate, "The highest rate of AdamW; no weight decay.", base::more_than(0), {"lr"}},
       {"warmup", &O::warmup, "The share of the steps over which the rate rises; then it falls to 0 in a line.", base::between(0, 1)},
       {"add_bias", &O::add_bias, "The linear layers of a model without biases get some, which start at 0."},
       {"inputs", &O::inputs, "reconstruct: what a layer reads: the outputs of the repaired layers before it, or those of the dense ones.",
        kRecoverInputsNames}}};
}

void check_prune_options(const PruneOptions& o) {
  if (o.sparsity >= 1) base::fail_input("prune.sparsity = {}: nothing would be left. Use a share below 1.", o.sparsity);
  const PrunePattern pattern = o.parsed_pattern();
  const double of_pattern = pattern.m > 0 ? static_cast<double>(pattern.n) / static_cast<double>(pattern.m) : o.sparsity;
  if (std::abs(of_pattern - o.sparsity) > 1e-9)
    base::fail_input("prune.sparsity = {}: pattern {} removes {}. Set sparsity = {}.", o.sparsity, o.pattern, of_pattern, of_pattern);
  if (pattern.m > 0 && o.compare != PruneCompare::automatic)
    base::fail_input("prune.compare = {}: with pattern {} weights compete in their group. Leave compare out.",
                     base::enum_name(kPruneCompareNames, o.compare), o.pattern);
  if (pattern.m > 0 && o.rounds > 1)
    base::fail_input("prune.rounds = {}: pattern {} has one sparsity. Use rounds = 1.", o.rounds, o.pattern);
  if (o.method == PruneMethod::sparsegpt && o.compare == PruneCompare::row)
    base::fail_input("prune.compare = row: sparsegpt chooses among all weights of 128 columns. Leave compare out.");
  check_recover(o);
}

}  // namespace cairn::study
