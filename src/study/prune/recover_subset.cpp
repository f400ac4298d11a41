#include "study/prune/recover_subset.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "model/card.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "model/options.h"
#include "model/weight_rules.h"
#include "study/prune/layer_stream.h"

namespace cairn::study {
namespace {

using ParameterRole = model::Parameter::Role;

bool has_subset(const RecoverOptions& options, const char* subset) {
  return std::count(options.train.begin(), options.train.end(), subset) > 0;
}

std::string module_of_parameter(const std::string& name) { return name.substr(0, name.rfind('.')); }

bool is_of_head(const std::string& name, const model::DecoderShape& shape) {
  return name.starts_with(model::family(shape.family).names.head + ".lora_");
}

}  // namespace

model::DecoderShape pruned_shape(const RecoverOptions& options, model::DecoderShape shape) {
  if (!options.add_bias) return shape;
  const model::FamilyConfig& config = model::family(shape.family).config;
  if (!config.attention_bias || !config.mlp_bias)
    base::fail_input("prune.recover.add_bias = true: {} models have no such biases in other programs. Leave it out.", shape.family);
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  return shape;
}

std::vector<std::string> pruned_weights(const model::Model& plain, const PrunePattern& pattern) {
  std::vector<std::string> names;
  for (const auto& block : plain.blocks()) {
    if (!block->card().name.starts_with("layers.")) continue;
    for (const model::BlockOp& operation : block->card().operations) {
      if (operation.kind != model::BlockOp::Kind::product || operation.parameters.empty()) continue;
      for (int32_t i = 0; i < operation.parameters.front().count; ++i) {
        const model::Parameter& weight = model::dense_weight(operation, static_cast<size_t>(i), plain);
        const int64_t inputs = model::input_width(operation, plain);
        if (pattern.m > 0 && inputs % pattern.m != 0)
          base::fail_input("prune.pattern = {}:{}: {} has {} inputs, which are no groups of {}. Use another pattern.", pattern.n, pattern.m,
                           weight.name, inputs, pattern.m);
        names.push_back(weight.name);
      }
    }
  }
  return names;
}

model::SparseOptions sparse_options(const RecoverOptions& options, std::vector<std::string> weights) {
  model::SparseOptions sparse{
      .rank = options.rank, .alpha = options.alpha, .keep_zeros = !has_subset(options, "lora"), .weights = std::move(weights)};
  if (has_subset(options, "mask_lora")) sparse.form = model::SparseForm::mask_lora;
  if (has_subset(options, "scale_lora")) sparse.form = model::SparseForm::scale_lora;
  return sparse;
}

model::AdapterShape adapter_shape(const RecoverOptions& options, const std::vector<std::string>& weights, const model::DecoderShape& shape,
                                  bool with_head) {
  model::AdapterShape adapter{.rank = 0, .alpha = options.alpha, .targets = {}};
  if (has_subset(options, "lora") || has_subset(options, "lora_prune"))
    for (const std::string& weight : weights) adapter.targets.push_back(module_of_parameter(weight));
  if (with_head && has_subset(options, "head")) {
    if (shape.tied)
      base::fail_input(
          "prune.recover.train: head: the head of this model is its embedding table (tied), which is not pruned. Leave head out.");
    adapter.targets.push_back(model::family(shape.family).names.head);
  }
  if (!adapter.targets.empty()) adapter.rank = options.rank;
  return adapter;
}

std::vector<std::string> trained_parameters(const model::Model& model, const RecoverOptions& options, const model::DecoderShape& shape,
                                            bool with_head) {
  std::set<std::string> norms;
  bool any_bias = false;
  for (const model::Parameter& one : model.parameters()) {
    if (one.role == ParameterRole::norm) norms.insert(module_of_parameter(one.name));
    any_bias = any_bias || one.role == ParameterRole::bias;
  }
  if (has_subset(options, "bias") && !any_bias)
    base::fail_input(
        "prune.recover.train: bias: this model has no biases. Use norm, or set prune.recover.add_bias = true, which gives its layers "
        "some.");
  const bool all = has_subset(options, "full"), bias = has_subset(options, "bias"), norm = has_subset(options, "norm");
  std::vector<std::string> names;
  for (const model::Parameter& one : model.parameters()) {
    const bool of_norm =
        one.role == ParameterRole::norm || (one.role == ParameterRole::bias && norms.contains(module_of_parameter(one.name)));
    const bool of_form = one.role == ParameterRole::adapter && (with_head || !is_of_head(one.name, shape));
    if (all || of_form || (bias && one.role == ParameterRole::bias) || (norm && of_norm)) names.push_back(one.name);
  }
  return names;
}

RetrainedParts retrained_parts(const RecoverOptions& options, const model::DecoderShape& shape, const std::vector<std::string>& weights) {
  RetrainedParts parts{.sparse = sparse_options(options, weights), .adapter = adapter_shape(options, weights, shape, /*with_head=*/true)};
  model::ModelOptions forms;
  forms.sparse = parts.sparse;
  const auto built = model::make_decoder(shape, parts.adapter, model::weight_rule(forms));
  parts.trained = trained_parameters(*built, options, shape, /*with_head=*/true);
  if (parts.trained.empty()) base::fail_input("prune.recover.train: this model has none of these parameters. Add mask_lora.");
  const std::set<std::string> chosen(parts.trained.begin(), parts.trained.end());
  for (const model::Parameter& one : built->parameters()) parts.trained_elements += chosen.contains(one.name) ? one.elements() : 0;
  return parts;
}

void check_prunable(const PruneOptions& options, const model::DecoderShape& dense) {
  const RecoverOptions& recover = options.recover;
  const model::DecoderShape shape = pruned_shape(recover, dense);
  const std::unique_ptr<model::Model> plain = model::make_decoder(shape);
  parts_of(*plain, shape);
  const std::vector<std::string> weights = pruned_weights(*plain, options.parsed_pattern());
  if (recover.mode == RecoverMode::retrain) retrained_parts(recover, shape, weights);
  if (recover.mode != RecoverMode::reconstruct) return;
  model::ModelOptions forms;
  forms.sparse = sparse_options(recover, weights);
  const auto built = model::make_decoder(shape, adapter_shape(recover, weights, shape, /*with_head=*/false), model::weight_rule(forms));
  const std::string layers = model::family(shape.family).names.layers + ".";
  const std::vector<std::string> trained = trained_parameters(*built, recover, shape, /*with_head=*/false);
  if (std::ranges::none_of(trained, [&](const std::string& name) { return name.starts_with(layers); }))
    base::fail_input("prune.recover.train: the layers of this model have none of these parameters. Add mask_lora.");
}

}  // namespace cairn::study
