#include "model/weight_rules.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "model/decoder/masked_weight.h"
#include "model/decoder/spectral_weight.h"
#include "model/decoder/weight_form.h"
#include "model/families/families.h"
#include "model/options.h"
#include "model/supernet/sliced_weight.h"

namespace cairn::model {
namespace {

struct WeightRuleEntry {
  const char* section;
  bool (*is_used)(const ModelOptions&);
  std::shared_ptr<const WeightFormRule> (*make)(const ModelOptions&);
};

std::shared_ptr<const WeightFormRule> sliced_rule(const ModelOptions& o) {
  std::vector<std::string> layers;
  for (int64_t layer = 0; layer < o.layers; ++layer) layers.push_back(fmt::format("{}.{}.", family(o.kind).names.layers, layer));
  std::vector<int64_t> widths = o.supernet.mlp;
  std::ranges::sort(widths);
  return make_sliced_rule(std::move(layers), std::move(widths));
}

constexpr WeightRuleEntry kWeightRules[] = {
    {"model.sparse", [](const ModelOptions& o) { return o.sparse.any(); },
     [](const ModelOptions& o) { return make_sparse_rule(o.sparse); }},
    {"model.spectral", [](const ModelOptions& o) { return o.spectral.any(); },
     [](const ModelOptions& o) { return make_spectral_rule(o.spectral); }},
    {"supernet", [](const ModelOptions& o) { return !o.supernet.mlp.empty(); }, sliced_rule},
};

}  // namespace

std::shared_ptr<const WeightFormRule> weight_rule(const ModelOptions& options) {
  const WeightRuleEntry* used = nullptr;
  for (const WeightRuleEntry& one : kWeightRules) {
    if (!one.is_used(options)) continue;
    if (used)
      base::fail_input("{}: does not work with {}: a weight has one form. Leave one of the two out{}.", one.section, used->section,
                       options.sparse.any() ? " (masks of a pruned model are dropped by model.sparse.form = \"dense\")" : "");
    used = &one;
  }
  return used ? used->make(options) : nullptr;
}

}  // namespace cairn::model
