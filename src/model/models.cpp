// The registry of model kinds. A new kind is a file that makes it and one line in `models`, with what it needs (needs.h).
#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "model/classifier/classifier.h"
#include "model/classifier/cnn3d.h"
#include "model/decoder/attention_pattern.h"
#include "model/decoder/decoder.h"
#include "model/decoder/wiring.h"
#include "model/families/families.h"
#include "model/formed_weights.h"
#include "model/hyperbolic/lorentz_graph.h"
#include "model/losses/retrieval.h"
#include "model/model.h"
#include "model/needs.h"
#include "model/objective.h"
#include "model/options.h"
#include "model/vision/conv_net.h"
#include "model/weight_rules.h"

namespace cairn::model {
namespace {

// Refuses keys that the kind has no use for, and data that it cannot read.
void check_fit(const ModelOptions& o, const DataShape& inputs, const ModelNeeds& needs) {
  if (!o.hidden.empty() && !needs.batch_norm)
    base::fail_input("model.hidden: {} has layers of one width. Set model.layers and model.embed, or use model.kind = \"classifier\".",
                     o.kind);
  if (o.batch_norm && !needs.batch_norm)
    base::fail_input("model.batch_norm = true: {} has norms of its own. Leave it out, or use model.kind = \"classifier\".", o.kind);
  if (!is_standard(o.residual) && !needs.residual_stream)
    base::fail_input("model.residual = \"{}\": {} has no residual stream. Leave it out.", o.residual, o.kind);
  if (o.attention != PatternOptions{} && !needs.residual_stream)
    base::fail_input("model.attention.type = \"{}\": {} has no attention. Leave it out, or use model.kind = \"llama\".", o.attention.type,
                     o.kind);
  if (o.parscale != StreamOptions{} && !needs.residual_stream)
    base::fail_input("model.parscale.streams = {}: {} has no attention. Leave it out, or use model.kind = \"llama\".", o.parscale.streams,
                     o.kind);
  if (o.attention != PatternOptions{} && !needs.causal)
    base::fail_input("model.attention.type = \"{}\": every token of {} sees all others. Leave it out.", o.attention.type, o.kind);
  if (o.parscale != StreamOptions{} && !needs.causal)
    base::fail_input("model.parscale.streams = {}: {} is no decoder. Leave it out.", o.parscale.streams, o.kind);
  if (o.supernet.any() && !needs.elastic)
    base::fail_input("supernet: {} has no layers or channels that can be left out. Use model.kind = \"cnn\", or a decoder.", o.kind);
  if (o.moe != ExpertOptions{} && !needs.residual_stream)
    base::fail_input("model.moe: {} has no experts. Leave the keys out, or use model.kind = \"qwen3_moe\".", o.kind);
  if (o.dropout > 0 && !needs.residual_stream)
    base::fail_input("model.dropout = {}: {} has no dropout. Leave it out, or use model.kind = \"llama\".", o.dropout, o.kind);
  if (needs.data == ModelNeeds::Data::tokens && inputs.vocab == 0)
    base::fail_input("model.kind = \"{}\": reads tokens, and the data have none. Use text data, or model.kind = \"classifier\".", o.kind);
  if (needs.data == ModelNeeds::Data::features && inputs.classes == 0)
    base::fail_input(
        "model.kind = \"{}\": needs data with labels. Set data.kind = \"table\" or \"spirals\", or use model.kind = \"llama\" for text.",
        o.kind);
  if (needs.data == ModelNeeds::Data::clips && inputs.frames == 0)
    base::fail_input("model.kind = \"{}\": reads clips. Set data.kind = \"clips\", or use model.kind = \"llama\" for text.", o.kind);
  if (needs.data != ModelNeeds::Data::clips && inputs.frames > 0)
    base::fail_input("model.kind = \"{}\": does not read clips. Use model.kind = \"cnn3d\".", o.kind);
  if (needs.data == ModelNeeds::Data::images && inputs.channels == 0)
    base::fail_input("model.kind = \"{}\": reads pictures. Set data.kind = \"images\", or use model.kind = \"llama\" for text.", o.kind);
  if (needs.data != ModelNeeds::Data::images && inputs.channels > 0)
    base::fail_input("model.kind = \"{}\": does not read pictures. Use model.kind = \"vit\" or \"cnn\".", o.kind);
}

void check_ladder_layers(const ModelOptions& o) {
  if (!is_ladder(o.residual) && o.ladder_layers != "all")
    base::fail_input("model.ladder_layers = \"{}\": there is no ladder: set model.residual = \"ladder\", or leave it out", o.ladder_layers);
}

// The keys of linear attention, checked; other families must not set them.
LinearAttentionShape linear_attention(const ModelOptions& o) {
  const ModelOptions usual;
  LinearAttentionShape shape;
  if (!family(o.kind).linear_attention) {
    if (o.decay != usual.decay || o.expand_k != usual.expand_k || o.expand_v != usual.expand_v || o.softmax_layers != usual.softmax_layers)
      base::fail_input(
          "model.kind = \"{}\": it has no linear attention. Leave model.decay, expand_k, expand_v and softmax_layers out, or use "
          "model.kind = \"gla\".",
          o.kind);
    return shape;
  }
  const auto width_of_head = [&](const char* key, double expansion) {
    const double width = static_cast<double>(o.embed) * expansion / static_cast<double>(o.heads);
    if (width < 1 || width != std::floor(width))
      base::fail_input("model.{} = {}: model.embed = {} times this must be a multiple of model.heads = {}. Choose such a value.", key,
                       expansion, o.embed, o.heads);
    return static_cast<int64_t>(width);
  };
  if ((o.chunk & (o.chunk - 1)) != 0) base::fail_input("model.chunk = {}: must be a power of two. Use 64.", o.chunk);
  shape.decay = o.decay, shape.heads = o.heads, shape.chunk = o.chunk;
  shape.key_dim = width_of_head("expand_k", o.expand_k), shape.value_dim = width_of_head("expand_v", o.expand_v);
  shape.softmax_layers = parse_layers(o.softmax_layers, o.layers, "model.softmax_layers");
  return shape;
}

// Refuses what a supernet does not work with, and choices that the model cannot have.
void check_supernet(const ModelOptions& o, const Model& model, const AdapterShape& adapter = {}) {
  if (!o.supernet.any()) return;
  subnet_choices(o.supernet, model.elastic());
  if (!is_standard(o.residual) && !o.supernet.depth.empty())
    base::fail_input(
        "supernet.depth: a layer can be left out of model.residual = \"standard\" only, and it is \"{}\". Leave one of both out.",
        o.residual);
  if (o.parscale.streams > 1)
    base::fail_input("supernet: does not work with model.parscale.streams = {}: leave one of the two out.", o.parscale.streams);
  if (adapter.rank > 0) base::fail_input("supernet: does not work with adapters, whose widths are fixed: leave one of the two out.");
}

// A decoder with its objective; for retrieval without a head, whose weights are not trained.
BuiltModel with_objective(DecoderShape shape, const ModelOptions& options, const DataShape& inputs, const AdapterShape& adapter = {}) {
  if (options.supernet.any()) check_supernet(options, *make_decoder(shape), adapter);
  shape.elastic_layers = !options.supernet.depth.empty();
  if (shape.pictures.channels > 0) return {make_decoder(shape, adapter, weight_rule(options)), make_classification()};
  if (!inputs.retrieval) return {make_decoder(shape, adapter, weight_rule(options)), make_next_token()};
  shape.tied = true;
  return {make_encoder(shape, adapter, weight_rule(options)), make_retrieval({})};
}

BuiltModel decoder(const ModelOptions& o, const DataShape& inputs) {
  const Family& kind = family(o.kind);
  if (o.heads % o.kv_heads != 0)
    base::fail_input("model.heads = {}: must be a multiple of model.kv_heads = {}. Choose heads that divide evenly.", o.heads, o.kv_heads);
  if (o.head_dim == 0 && o.embed % o.heads != 0)
    base::fail_input("model.embed = {}: must be a multiple of model.heads = {}. Choose such a width, or set model.head_dim.", o.embed,
                     o.heads);
  const int64_t head_dim = o.head_dim ? o.head_dim : o.embed / o.heads;
  if (kind.rotary() && head_dim % 2 != 0)
    base::fail_input("model.head_dim = {}: rotary positions need an even width. Choose embed = heads x an even number.", head_dim);
  if (!kind.grouped_queries && (o.kv_heads != o.heads || head_dim * o.heads != o.embed))
    base::fail_input(
        "model.kind = \"{}\": each head has keys of its own and heads fill the width. Set model.kv_heads = {} (it is {}) and leave "
        "model.head_dim at 0.",
        kind.name, o.heads, o.kv_heads);
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
  if (is_ladder(o.residual)) shape.ladder_layers = parse_layers(o.ladder_layers, o.layers);
  check_ladder_layers(o);
  shape.linear = linear_attention(o);
  set_pattern(shape, o.attention);
  set_streams(shape, o.parscale);
  set_experts(shape, o.moe);
  if (inputs.end_of_text >= 0) shape.tokens = {.bos = inputs.end_of_text, .eos = {inputs.end_of_text}};
  return with_objective(shape, o, inputs);
}

BuiltModel picture_transformer(const ModelOptions& o, const DataShape& inputs) {
  const Family& kind = family(o.kind);
  if (o.embed % o.heads != 0)
    base::fail_input("model.embed = {}: must be a multiple of model.heads = {}. Choose such a width.", o.embed, o.heads);
  if ((o.kv_heads != o.heads && o.kv_heads != ModelOptions{}.kv_heads) || o.head_dim != 0)
    base::fail_input("model.kind = \"{}\": each head has keys of its own and heads fill the width. Leave model.kv_heads and head_dim out.",
                     kind.name);
  if (inputs.size % o.patch != 0)
    base::fail_input("model.patch = {}: images.size = {} is no multiple of it. Choose a patch that divides the size.", o.patch,
                     inputs.size);
  check_ladder_layers(o);
  linear_attention(o);  // refuses its keys
  DecoderShape shape{.vocab = inputs.classes,
                     .embed = o.embed,
                     .layers = o.layers,
                     .heads = o.heads,
                     .kv_heads = o.heads,
                     .head_dim = o.embed / o.heads,
                     .mlp = o.mlp,
                     .length = 0,
                     .tied = false,
                     .norm_eps = o.norm_eps,
                     .family = kind.name,
                     .qkv_bias = kind.qkv_bias,
                     .out_bias = kind.out_bias,
                     .mlp_bias = kind.mlp_bias,
                     .dropout = o.dropout,
                     .residual = o.residual,
                     .pictures = {.channels = inputs.channels, .size = inputs.size, .patch = o.patch, .labels = inputs.labels}};
  shape.length = shape.pictures.positions();
  if (is_ladder(o.residual)) shape.ladder_layers = parse_layers(o.ladder_layers, o.layers);
  return with_objective(shape, o, inputs);
}

ConvNetShape conv_shape(const ModelOptions& o, const DataShape& inputs) {
  if (o.cnn.widths.empty() || o.cnn.widths.size() != o.cnn.depths.size())
    base::fail_input("model.cnn.depths: {} numbers of layers for {} stages (model.cnn.widths). Write one for each.", o.cnn.depths.size(),
                     o.cnn.widths.size());
  if (o.cnn.kernel % 2 == 0) base::fail_input("model.cnn.kernel = {}: must be odd. Use {}.", o.cnn.kernel, o.cnn.kernel + 1);
  return {.channels = inputs.channels,
          .size = inputs.size,
          .classes = inputs.classes,
          .widths = o.cnn.widths,
          .depths = o.cnn.depths,
          .expand = o.cnn.expand,
          .kernel = o.cnn.kernel};
}

BuiltModel cnn(const ModelOptions& o, const DataShape& inputs) {
  BuiltModel built{make_conv_net(conv_shape(o, inputs)), make_classification()};
  check_supernet(o, *built.model);
  return built;
}

BuiltModel classifier(const ModelOptions& o, const DataShape& inputs) {
  if (o.batch_norm && !o.hidden.empty())
    base::fail_input("model.batch_norm = true: layers of model.hidden have none. Leave one of both out.");
  return {make_classifier({.features = inputs.features,
                           .classes = inputs.classes,
                           .hidden = o.embed,
                           .layers = o.layers,
                           .widths = o.hidden,
                           .batch_norm = o.batch_norm}),
          make_classification()};
}

BuiltModel lorentz_graph(const ModelOptions& o, const DataShape& inputs) {
  if (o.hyperbolic.nodes < 2)
    base::fail_input("model.hyperbolic.nodes = {}: model.kind = \"lorentz\" embeds the nodes of a graph. Set their number.",
                     o.hyperbolic.nodes);
  if (inputs.features != 2)
    base::fail_input(
        "model.kind = \"lorentz\": a sample is the numbers of two nodes and their distance as its label, and these data have {} "
        "features. Use data.kind = table with two columns.",
        inputs.features);
  if (o.embed < 2) base::fail_input("model.embed = {}: a point has a time and at least one coordinate of space. Use 2 or more.", o.embed);
  return {make_lorentz_graph({.nodes = o.hyperbolic.nodes,
                              .width = o.embed,
                              .layers = o.layers,
                              .classes = inputs.classes,
                              .edges = o.hyperbolic.graph.empty() ? GraphEdges{} : read_edges(o.hyperbolic.graph, o.hyperbolic.nodes)},
                             weight_rule(o)),
          make_classification()};
}

// Refuses a target that is no linear layer of the model.
void check_targets(const Model& model, const AdapterShape& adapter, const std::string& kind) {
  for (const std::string& target : adapter.rank > 0 && !adapter.on_branches() ? adapter.targets : std::vector<std::string>{}) {
    AdapterShape alone = adapter;
    alone.targets = {target};
    const auto fits = [&](const std::unique_ptr<Block>& block) {
      return std::ranges::any_of(block->card().operations, [&](const BlockOp& operation) {
        return std::ranges::any_of(operation.adapted, [&](int32_t place) {
          const std::string& name = dense_weight(operation, static_cast<size_t>(place), model).name;
          return alone.targets_module(name.substr(0, name.rfind('.')));
        });
      });
    };
    if (std::none_of(model.blocks().begin(), model.blocks().end(), fits))
      base::fail_input("model.adapter.targets = \"{}\": no linear layer of {} has this name. Use {}.", target, kind,
                       family(kind).linear_layers);
  }
}

BuiltModel cnn3d(const ModelOptions& o, const DataShape& inputs) {
  // An image is a clip of one frame.
  if (const int64_t least = cnn3d_time_stride(o.layers); inputs.frames > 1 && inputs.frames < least)
    base::fail_input("model.kind = \"cnn3d\": {} layers leave none of {} frames, they need {}. Use more frames, or fewer layers.", o.layers,
                     inputs.frames, least);
  if (const int64_t least = cnn3d_space_stride(o.layers); inputs.size < least)
    base::fail_input("model.kind = \"cnn3d\": {} layers leave nothing of {} x {} pixels, they need {}. Use larger clips, or fewer layers.",
                     o.layers, inputs.size, inputs.size, least);
  return {make_cnn3d({.width = o.embed, .layers = o.layers, .classes = inputs.classes, .frames = inputs.frames, .size = inputs.size}),
          make_classification()};
}

struct Entry {
  std::string name;
  BuiltModel (*make)(const ModelOptions&, const DataShape&);
  ModelNeeds needs = {};
};

// The families of decoders (families/families.cpp), then the other kinds.
const std::vector<Entry>& models() {
  static const std::vector<Entry> list = [] {
    std::vector<Entry> all;
    for (const Family& one : families())
      all.push_back(
          {one.name, decoder, {.linear_attention = one.linear_attention, .experts = one.has_experts(), .elastic = !one.has_experts()}});
    all.push_back({"classifier",
                   classifier,
                   {.data = ModelNeeds::Data::features,
                    .token_embedding = false,
                    .large_vocabulary = false,
                    .residual_stream = false,
                    .batch_norm = true,
                    .half_precision = false,
                    .elastic = false,
                    .running_statistics = true}});
    all.push_back({"lorentz",
                   lorentz_graph,
                   {.data = ModelNeeds::Data::features,
                    .token_embedding = false,
                    .large_vocabulary = false,
                    .residual_stream = false,
                    .half_precision = false,
                    .elastic = false}});
    all.push_back({"cnn3d",
                   cnn3d,
                   {.data = ModelNeeds::Data::clips,
                    .token_embedding = false,
                    .large_vocabulary = false,
                    .residual_stream = false,
                    .half_precision = false,
                    .elastic = false,
                    .running_statistics = true}});
    for (const Family& one : picture_families())
      all.push_back({one.name,
                     picture_transformer,
                     {.data = ModelNeeds::Data::images, .token_embedding = false, .large_vocabulary = false, .causal = false}});
    all.push_back({"cnn",
                   cnn,
                   {.data = ModelNeeds::Data::images,
                    .token_embedding = false,
                    .large_vocabulary = false,
                    .residual_stream = false,
                    .half_precision = false,
                    .running_statistics = true}});
    return all;
  }();
  return list;
}

const Entry& entry_of(std::string_view kind) {
  for (const Entry& entry : models())
    if (entry.name == kind) return entry;
  base::fail_unknown("model", kind, model_names());
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : models()) names.push_back(entry.name);
  return names;
}

const ModelNeeds& needs_of(std::string_view kind) { return entry_of(kind).needs; }

BuiltModel build_model(const ModelOptions& options, const DataShape& inputs) {
  const Entry& entry = entry_of(options.kind);
  check_fit(options, inputs, entry.needs);
  return entry.make(options, inputs);
}

namespace {

// Classes of its own get a new head (start_from).
BuiltModel continued_picture_model(const ModelOptions& options, const DataShape& inputs, DecoderShape shape, const AdapterShape& adapter) {
  const PatchInput& theirs = shape.pictures;
  if (inputs.size != theirs.size)
    base::fail_input("images.size = {}: the model in {} reads {} x {} pixels. Leave the key out.", inputs.size, options.from, theirs.size,
                     theirs.size);
  if (inputs.channels != theirs.channels)
    base::fail_input("images.channels = {}: the model in {} reads {}. Leave the key out.", inputs.channels, options.from, theirs.channels);
  shape.vocab = inputs.classes;
  if (!inputs.labels.empty()) shape.pictures.labels = inputs.labels;
  if (shape.pictures.labels.size() != static_cast<size_t>(shape.vocab)) shape.pictures.labels.clear();
  std::erase_if(shape.other_fields, [](const auto& field) { return field.first == "id2label" || field.first == "label2id"; });
  shape.dropout = options.dropout;
  check_ladder_layers(options);
  shape.residual = options.residual;
  shape.ladder_layers = is_ladder(options.residual) ? parse_layers(options.ladder_layers, shape.layers) : std::vector<int64_t>{};
  BuiltModel built = with_objective(shape, options, inputs, adapter);
  check_targets(*built.model, adapter, shape.family);
  return built;
}

}  // namespace

BuiltModel build_model(const ModelOptions& options, const DataShape& inputs, DecoderShape shape, const AdapterShape& adapter) {
  ModelOptions named = options;
  named.kind = shape.family;
  check_fit(named, inputs, needs_of(shape.family));
  if (shape.pictures.channels > 0) return continued_picture_model(named, inputs, std::move(shape), adapter);
  check_tokenizer_fits("model.from = " + options.from, shape.vocab, inputs.vocab);
  if (inputs.length > shape.length)
    base::fail_input("data.length = {}: the model in {} reads at most {} tokens. Choose a shorter length.", inputs.length, options.from,
                     shape.length);
  shape.table_length = inputs.length;
  shape.dropout = options.dropout;
  shape.linear.chunk = options.chunk;
  check_ladder_layers(options);
  shape.residual = options.residual;
  shape.ladder_layers = is_ladder(options.residual) ? parse_layers(options.ladder_layers, shape.layers) : std::vector<int64_t>{};
  if (options.attention != pattern_options_of(shape))
    shape.pattern.reset(), shape.dense_layers.clear(), set_pattern(shape, options.attention);
  if (options.parscale.streams > 1 || shape.streams.count == 1) set_streams(shape, options.parscale);
  set_expert_training(shape, options.moe);
  BuiltModel built = with_objective(shape, options, inputs, adapter);
  check_targets(*built.model, adapter, shape.family);
  return built;
}

void check_tokenizer_fits(const std::string& model, int64_t vocab, int64_t tokenizer_ids) {
  if (tokenizer_ids > vocab)
    base::fail_input("{}: its vocabulary has {} entries, the tokenizer {}. Use the tokenizer that belongs to the model.", model, vocab,
                     tokenizer_ids);
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
  if (shape.pictures.channels > 0) options.patch = shape.pictures.patch;
  if (const LinearAttentionShape& linear = shape.linear; linear.heads > 0) {
    options.decay = linear.decay;
    options.expand_k = static_cast<double>(linear.heads * linear.key_dim) / static_cast<double>(shape.embed);
    options.expand_v = static_cast<double>(linear.heads * linear.value_dim) / static_cast<double>(shape.embed);
    options.softmax_layers = linear.softmax_layers.empty() ? "last 0" : format_layers(linear.softmax_layers, shape.layers);
  }
  options.attention = pattern_options_of(shape);
  options.parscale = stream_options_of(shape, options.parscale);
  options.moe = expert_options_of(shape, options.moe);
  if (options.convert) return options;
  options.residual = shape.residual;
  options.ladder_layers = is_ladder(shape.residual) ? format_layers(shape.ladder_layers, shape.layers) : "all";
  return options;
}

}  // namespace cairn::model
