// The list of models. A new one is a file beside this and one line here.
#include <algorithm>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "model/classifier/classifier.h"
#include "model/decoder/decoder.h"
#include "model/decoder/wiring.h"
#include "model/families/families.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"

namespace cairn::model {
namespace {

void check_no_batch_norm(const ModelOptions& o) {
  if (o.batch_norm) base::fail_input("model.batch_norm = true: {} has norms of its own; it is for model.kind = \"classifier\"", o.kind);
}

void check_reads_tokens(const std::string& kind, const DataShape& inputs) {
  if (inputs.vocab == 0)
    base::fail_input("model.kind = \"{}\" reads tokens, and the data have none: choose data of text, or model.kind = \"classifier\"", kind);
}

void check_ladder_layers(const ModelOptions& o) {
  if (o.residual != "ladder" && o.ladder_layers != "all")
    base::fail_input("model.ladder_layers = \"{}\": there is no ladder: set model.residual = \"ladder\", or leave it out", o.ladder_layers);
}

BuiltModel decoder(const ModelOptions& o, const DataShape& inputs) {
  const Family& kind = family(o.kind);
  check_reads_tokens(o.kind, inputs);
  if (o.heads % o.kv_heads != 0) base::fail_input("model.heads = {} must be a multiple of model.kv_heads = {}", o.heads, o.kv_heads);
  if (o.head_dim == 0 && o.embed % o.heads != 0)
    base::fail_input("model.embed = {} must be a multiple of model.heads = {}, or set model.head_dim", o.embed, o.heads);
  const int64_t head_dim = o.head_dim ? o.head_dim : o.embed / o.heads;
  if (kind.rotary() && head_dim % 2 != 0)
    base::fail_input("model.head_dim = {}: rotary positions need an even width; choose embed = heads x an even number", head_dim);
  check_no_batch_norm(o);
  if (kind.name == "gpt2" && (o.kv_heads != o.heads || head_dim * o.heads != o.embed))
    base::fail_input(
        "model.kind = \"gpt2\": its heads share no keys and fill the width: set model.kv_heads = {} (it is {}) and leave model.head_dim at "
        "0",
        o.heads, o.kv_heads);
  DecoderShape shape{.vocab = inputs.vocab,
                     .embed = o.embed,
                     .layers = o.layers,
                     .heads = o.heads,
                     .kv_heads = o.kv_heads,
                     .head_dim = head_dim,
                     .mlp = o.mlp,
                     .length = inputs.length,
                     .tied = o.tied,
                     .rope_theta = o.rope_theta,
                     .norm_eps = o.norm_eps,
                     .family = kind.name,
                     .qkv_bias = kind.qkv_bias,
                     .out_bias = kind.out_bias,
                     .mlp_bias = kind.mlp_bias,
                     .dropout = o.dropout,
                     .residual = o.residual};
  if (o.residual == "ladder") shape.ladder_layers = parse_layers(o.ladder_layers, o.layers);
  check_ladder_layers(o);
  if (inputs.end_of_text >= 0) shape.tokens = {.bos = inputs.end_of_text, .eos = {inputs.end_of_text}};
  return {make_decoder(shape), make_next_token()};
}

BuiltModel classifier(const ModelOptions& o, const DataShape& inputs) {
  if (o.residual != "standard")
    base::fail_input("model.residual = \"{}\": the classifier has no residual stream: leave it out", o.residual);
  if (o.dropout > 0)
    base::fail_input("model.dropout = {}: the classifier has none: leave it out, or choose model.kind = \"llama\"", o.dropout);
  if (inputs.classes == 0)
    base::fail_input(
        "model.kind = \"classifier\" needs data with labels: set data.kind = \"spirals\", or choose model.kind = \"llama\" for text");
  return {make_classifier(
              {.features = inputs.features, .classes = inputs.classes, .hidden = o.embed, .layers = o.layers, .batch_norm = o.batch_norm}),
          make_classification()};
}

struct Entry {
  std::string name;
  BuiltModel (*make)(const ModelOptions&, const DataShape&);
};

// The families of decoders (families.cpp), and what else there is.
const std::vector<Entry>& models() {
  static const std::vector<Entry> list = [] {
    std::vector<Entry> all;
    for (const std::string& name : family_names()) all.push_back({name, decoder});
    all.push_back({"classifier", classifier});
    return all;
  }();
  return list;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : models()) names.push_back(entry.name);
  return names;
}

BuiltModel build_model(const ModelOptions& options, const DataShape& inputs) {
  for (const Entry& entry : models())
    if (entry.name == options.kind) return entry.make(options, inputs);
  base::fail_unknown("model", options.kind, model_names());
}

BuiltModel build_model(const ModelOptions& options, const DataShape& inputs, DecoderShape shape, const LoraShape& lora) {
  check_reads_tokens(shape.family, inputs);
  if (inputs.vocab > shape.vocab)
    base::fail_input("model.from = {}: its vocabulary has {} entries, the tokenizer {}: train with the tokenizer that belongs to the model",
                     options.from, shape.vocab, inputs.vocab);
  if (inputs.length > shape.length)
    base::fail_input("model.from = {}: it reads at most {} tokens, and data.length = {}: choose a shorter one", options.from, shape.length,
                     inputs.length);
  shape.table_length = inputs.length;
  shape.dropout = options.dropout;
  check_ladder_layers(options);
  shape.residual = options.residual;
  shape.ladder_layers = options.residual == "ladder" ? parse_layers(options.ladder_layers, shape.layers) : std::vector<int64_t>{};
  check_no_batch_norm(options);
  BuiltModel built{make_decoder(shape, lora), make_next_token()};
  for (const std::string& target : lora.rank > 0 ? lora.targets : std::vector<std::string>{}) {
    LoraShape alone = lora;
    alone.targets = {target};
    const auto& all = built.model->parameters();
    if (std::none_of(all.begin(), all.end(), [&](const Parameter& p) {
          return p.role == Parameter::Role::adapter && alone.targets_module(p.name.substr(0, p.name.find(".lora_")));
        }))
      base::fail_input(
          "model.lora.targets: \"{}\" is no linear layer of {}, which has {}", target, shape.family,
          shape.family == "gpt2" ? "c_attn, c_proj and c_fc" : "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj");
  }
  return built;
}

ModelOptions options_of(const DecoderShape& shape, ModelOptions options) {
  options.kind = shape.family;
  options.layers = shape.layers;
  options.embed = shape.embed;
  options.heads = shape.heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.mlp = shape.mlp;
  options.tied = shape.tied;
  options.rope_theta = shape.rope_theta;
  options.norm_eps = shape.norm_eps;
  if (options.convert) return options;
  options.residual = shape.residual;
  options.ladder_layers = shape.residual == "ladder" ? format_layers(shape.ladder_layers, shape.layers) : "all";
  return options;
}

}  // namespace cairn::model
