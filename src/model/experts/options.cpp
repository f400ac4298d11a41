#include "model/experts/options.h"

#include "base/check.h"
#include "model/decoder/shape.h"
#include "model/families/expert_config.h"
#include "model/families/families.h"

namespace cairn::model {

base::Schema<ExpertOptions> expert_schema() {
  using O = ExpertOptions;
  return {
      "model.moe",
      "Mixture of experts (model.kind = \"mixtral\", \"qwen2_moe\", \"qwen3_moe\" or \"olmoe\"): each token goes to some of many MLPs.",
      {{"experts", &O::experts, "Experts of a layer.", base::between(1, kExpertsMax), {"num_experts", "num_local_experts"}},
       {"top_k", &O::top_k, "Experts that a token goes to.", base::between(1, kExpertsMax), {"num_experts_per_tok"}},
       {"width", &O::width, "Hidden width of an expert; 0: model.mlp.", base::between(0, 1 << 20), {"moe_intermediate_size"}},
       {"shared_width",
        &O::shared_width,
        "qwen2_moe: hidden width of the expert that every token goes to; 0: model.mlp.",
        base::between(0, 1 << 20),
        {"shared_expert_intermediate_size"}},
       {"every",
        &O::every,
        "One layer in so many has experts (the last of them), the others an MLP of width model.mlp (qwen2_moe, qwen3_moe).",
        base::between(1, 10000),
        {"decoder_sparse_step"}},
       {"normalize",
        &O::normalize,
        "Whether the weights of a token's experts add up to 1; otherwise they are probabilities among all experts (not mixtral).",
        base::any(),
        {"norm_topk_prob"}},
       {"balance", &O::balance,
        "What keeps the load of experts even. aux: a loss for each sequence. bias: a bias for each expert, which takes part in the "
        "choice alone and follows the load after every step. none: nothing.",
        kExpertBalanceNames},
       {"aux_loss",
        &O::aux_loss,
        "balance = aux: weight of the load-balancing loss.",
        base::may_change(base::between(0, 1000)),
        {"router_aux_loss_coef"}},
       {"z_loss", &O::z_loss, "Weight of the square of the log of the router's sum of exponentials, which keeps its logits small.",
        base::may_change(base::between(0, 1000))},
       {"bias_rate", &O::bias_rate, "balance = bias: by how much a bias changes after a step.", base::may_change(base::between(0, 1))}}};
}

void set_expert_training(DecoderShape& shape, const ExpertOptions& o) {
  ExpertShape& experts = shape.experts;
  if (experts.count == 0) return;
  experts.aux_weight = o.balance == ExpertBalance::aux ? o.aux_loss : 0;
  experts.z_weight = o.z_loss;
  if (o.balance == ExpertBalance::bias && !experts.biased)
    base::fail_input("model.moe.balance = bias: the model has no biases of experts. Use aux, or train a new model.");
}

void set_experts(DecoderShape& shape, const ExpertOptions& o) {
  const Family& kind = family(shape.family);
  if (!kind.has_experts()) {
    if (o != ExpertOptions{})
      base::fail_input("model.moe: model.kind = \"{}\" has no experts. Leave the keys out, or use model.kind = \"qwen3_moe\".",
                       shape.family);
    return;
  }
  if (o.top_k > o.experts)
    base::fail_input("model.moe.top_k = {}: there are model.moe.experts = {}. Use at most as many.", o.top_k, o.experts);
  if (o.shared_width > 0 && !kind.config.shared_expert)
    base::fail_input("model.moe.shared_width = {}: {} has no shared expert. Leave it out, or use model.kind = \"qwen2_moe\".",
                     o.shared_width, shape.family);
  if (o.every > 1 && !kind.config.dense_layers)
    base::fail_input("model.moe.every = {}: every layer of {} has experts. Leave it out, or use model.kind = \"qwen3_moe\".", o.every,
                     shape.family);
  if (o.every > shape.layers)
    base::fail_input("model.moe.every = {}: of model.layers = {} none would have experts. Use at most as many.", o.every, shape.layers);
  if (!o.normalize && !kind.config.norm_topk_prob)
    base::fail_input("model.moe.normalize = false: the weights of {} add up to 1. Leave it out, or use model.kind = \"olmoe\".",
                     shape.family);
  const bool own_width = kind.config.expert_width != "intermediate_size";
  if (!own_width && o.width > 0) shape.mlp = o.width;
  shape.experts = {.count = o.experts,
                   .top_k = o.top_k,
                   .width = o.width > 0 ? o.width : shape.mlp,
                   .shared_width = !kind.config.shared_expert ? 0
                                   : o.shared_width > 0       ? o.shared_width
                                                              : shape.mlp,
                   .normalize = o.normalize,
                   .biased = o.balance == ExpertBalance::bias};
  for (int64_t layer = 0; layer < shape.layers; ++layer)
    if ((layer + 1) % o.every != 0) shape.experts.dense_layers.push_back(layer);
  set_expert_training(shape, o);
}

ExpertOptions expert_options_of(const DecoderShape& shape, ExpertOptions options) {
  const ExpertShape& experts = shape.experts;
  if (experts.count == 0) return options;
  options.experts = experts.count;
  options.top_k = experts.top_k;
  options.width = experts.width;
  options.shared_width = experts.shared_width;
  options.normalize = experts.normalize;
  if (experts.biased) options.balance = ExpertBalance::bias;
  return options;
}

}  // namespace cairn::model
