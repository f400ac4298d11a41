#include "model/families/expert_config.h"

#include <fmt/format.h>

#include "base/check.h"
#include "model/families/config_fields.h"
#include "model/families/families.h"

namespace cairn::model {

void read_experts(DecoderShape& shape, const ConfigFields& config) {
  const FamilyConfig& style = family(shape.family).config;
  ExpertShape& experts = shape.experts;
  const char* count = style.experts.c_str();
  for (const char* other : {"num_experts", "num_local_experts"})  // versions of transformers differ
    if (!config.find(count) && config.find(other)) count = other;
  experts.count = config.size(count, kExpertsMax, style.default_experts);
  experts.top_k = config.size("num_experts_per_tok", kExpertsMax, style.default_experts_per_token);
  if (experts.top_k > experts.count)
    base::fail_corrupt(config.file(), fmt::format("num_experts_per_tok = {}: there are {} experts", experts.top_k, experts.count));
  experts.width = config.size(style.expert_width.c_str(), kWidthMax);
  experts.normalize = style.norm_topk_prob ? config.flag("norm_topk_prob", false) : true;
  const base::Json* loss = config.find("router_aux_loss_coef");
  experts.aux_weight = loss && *loss == 0 ? 0 : config.number("router_aux_loss_coef", 1e3, 0.001);
  if (style.shared_expert) experts.shared_width = config.size("shared_expert_intermediate_size", kWidthMax);
  if (!style.dense_layers) return;
  const int64_t step = config.size("decoder_sparse_step", kLayersMax, 1);
  const std::vector<int64_t> named =
      config.find("mlp_only_layers") ? layer_list(config, "mlp_only_layers", shape.layers) : std::vector<int64_t>{};
  for (int64_t layer = 0; layer < shape.layers; ++layer)
    if ((layer + 1) % step != 0 || std::binary_search(named.begin(), named.end(), layer)) experts.dense_layers.push_back(layer);
  if (experts.layers_of(shape.layers) == 0)
    base::fail_input("{}: no layer has experts (decoder_sparse_step, mlp_only_layers). Give a dense family as model_type.", config.file());
}

void write_experts(base::OrderedJson& config, const DecoderShape& shape) {
  const FamilyConfig& style = family(shape.family).config;
  const ExpertShape& experts = shape.experts;
  config[style.experts] = experts.count;
  config["num_experts_per_tok"] = experts.top_k;
  config[style.expert_width] = experts.width;
  if (style.norm_topk_prob) config["norm_topk_prob"] = experts.normalize;
  if (style.shared_expert) config["shared_expert_intermediate_size"] = experts.shared_width;
  if (style.dense_layers) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = experts.dense_layers;
  }
  config["output_router_logits"] = false;
  config["router_aux_loss_coef"] = experts.aux_weight;
}

}  // namespace cairn::model
