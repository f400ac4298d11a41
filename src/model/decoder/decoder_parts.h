// The parameters of a decoder, part by part: norms, linear layers and the adapters that they have. decoder.cpp puts layers together.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "model/decoder/adapter_block.h"
#include "model/decoder/blocks.h"
#include "model/decoder/decoder.h"
#include "model/decoder/pool_index.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/served_adapters.h"
#include "model/decoder/wiring.h"
#include "model/experts/moe_block.h"
#include "model/families/expert_names.h"
#include "model/families/families.h"
#include "model/formed_weights.h"

namespace cairn::model {

// Linear attention whose sizes are left open has those of flash-linear-attention: keys of half the width together, values of the width.
inline DecoderShape completed(DecoderShape shape) {
  LinearAttentionShape& linear = shape.linear;
  if (!family(shape.family).linear_attention || linear.heads > 0) return shape;
  linear.heads = shape.heads;
  linear.key_dim = std::max<int64_t>(1, shape.embed / 2 / shape.heads), linear.value_dim = std::max<int64_t>(1, shape.embed / shape.heads);
  return shape;
}

class DecoderParts : public Model {
 protected:
  DecoderParts(const DecoderShape& shape, const AdapterShape& adapter, std::shared_ptr<const ServedAdapters> served,
               std::shared_ptr<const WeightFormRule> forms)
      : shape_(completed(shape)), adapter_(adapter), served_(std::move(served)), forms_(std::move(forms)), family_(family(shape.family)) {}

  struct Part {
    std::string name;
    int64_t width;
    std::string axis;
    int64_t head_width = 0;  // of an axis of heads; 0: head_dim
  };

  // int64 [layers, rows].
  static at::Tensor table_of(const std::vector<std::vector<int64_t>>& rows, const at::TensorOptions& options) {
    const auto layers = static_cast<int64_t>(rows.size()), count = static_cast<int64_t>(rows.front().size());
    const at::Tensor table = at::empty({layers, count}, at::kLong);
    for (int64_t layer = 0; layer < layers; ++layer)
      std::copy(rows[static_cast<size_t>(layer)].begin(), rows[static_cast<size_t>(layer)].end(),
                table.mutable_data_ptr<int64_t>() + layer * count);
    return table.to(options.device());
  }

  int64_t head_width(const Part& part) const { return part.head_width > 0 ? part.head_width : shape_.head_dim; }
  int64_t queries_per_key(const Part& part) const { return part.head_width > 0 ? 1 : shape_.heads / shape_.kv_heads; }

  Norm add_norm(const std::string& name, Norm::Kind kind, int64_t width, const std::string& axis) {
    Norm norm{.kind = kind, .eps = shape_.norm_eps};
    norm.weight = Model::add(
        {.name = name + ".weight", .shape = {width}, .axes = {axis}, .role = Parameter::Role::norm, .init = Parameter::Init::ones});
    if (kind == Norm::Kind::layer) norm.bias = add_bias(name, width, axis);
    return norm;
  }

  mesh::ParamId add_bias(const std::string& name, int64_t width, const std::string& axis) { return add_bias(Part{name, width, axis}); }
  mesh::ParamId add_bias(const Part& part) {
    return Model::add({.name = part.name + ".bias",
                       .shape = {part.width},
                       .axes = {part.axis},
                       .role = Parameter::Role::bias,
                       .init = Parameter::Init::zeros,
                       .head_width = head_width(part),
                       .queries_per_key = queries_per_key(part)});
  }

  // Projections of one input that are multiplied as one matrix. Those that write to the residual stream are initialised smaller, so that
  // its variance does not grow with depth (GPT-2).
  Linear add_linear(const std::vector<Part>& outs, const Part& in, bool bias, bool to_residual = false) {
    const double deviation = 0.02 / (to_residual ? std::sqrt(2.0 * static_cast<double>(shape_.layers)) : 1.0);
    Linear linear{.fan_in_fan_out = family_.fan_in_fan_out};
    std::vector<Parameter> dense;
    for (const Part& out : outs)
      dense.push_back({.name = out.name + ".weight",
                       .shape = linear.fan_in_fan_out ? std::vector{in.width, out.width} : std::vector{out.width, in.width},
                       .axes = linear.fan_in_fan_out ? std::vector{in.axis, out.axis} : std::vector{out.axis, in.axis},
                       .deviation = deviation,
                       .head_width = head_width(in.head_width > 0 ? in : out),
                       .queries_per_key = queries_per_key(in.head_width > 0 ? in : out),
                       .fan_in_fan_out = linear.fan_in_fan_out});
    const bool replaced = is_replaced(dense);
    for (size_t i = 0; i < outs.size() && !replaced; ++i)
      if (const mesh::ParamId id = Model::add(dense[i]); i == 0) linear.weight = id;
    linear.weight.count = replaced ? 0 : static_cast<int32_t>(outs.size());
    for (size_t i = 0; bias && i < outs.size(); ++i) {
      const mesh::ParamId id = add_bias(outs[i]);
      if (i == 0) linear.bias = id;
    }
    if (bias) linear.bias->count = static_cast<int32_t>(outs.size());
    add_forms(linear, dense);
    add_adapters(linear, outs, in);
    return linear;
  }

  // The weights of a layer's experts, stacked, and of its router and the shared expert: nothing of them is split along tp, and none takes
  // adapters.
  void add_experts(MoeParts& parts, const std::string& layer) {
    const ExpertShape& experts = shape_.experts;
    const ExpertNames names = expert_names(layer);
    const double to_residual = 0.02 / std::sqrt(2.0 * static_cast<double>(shape_.layers));
    parts.router = Model::add({.name = names.router, .shape = {experts.count, shape_.embed}, .axes = {"router", "embed"}});
    if (experts.biased)
      parts.bias = Model::add({.name = names.bias,
                               .shape = {experts.count},
                               .axes = {"router"},
                               .role = Parameter::Role::bias,
                               .init = Parameter::Init::zeros,
                               .uses = 0,
                               .is_trainable = false});
    parts.gate_up =
        Model::add({.name = names.gate_up, .shape = {experts.count, 2 * experts.width, shape_.embed}, .axes = {"expert", "", "embed"}});
    parts.down = Model::add({.name = names.down,
                             .shape = {experts.count, shape_.embed, experts.width},
                             .axes = {"expert", "embed", ""},
                             .deviation = to_residual});
    if (experts.shared_width == 0) return;
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, double deviation) {
      return Model::add({.name = name + ".weight", .shape = {out, in}, .axes = {"shared", "shared"}, .deviation = deviation});
    };
    MoeParts::Shared shared;
    shared.up.weight = {matrix(names.shared + "gate_proj", experts.shared_width, shape_.embed, 0.02).first, 2};
    matrix(names.shared + "up_proj", experts.shared_width, shape_.embed, 0.02);
    shared.down.weight = matrix(names.shared + "down_proj", shape_.embed, experts.shared_width, to_residual);
    shared.gate.weight = matrix(names.shared_gate, 1, shape_.embed, 0.02);
    parts.shared = std::move(shared);
  }

  void check_experts() const {
    if (shape_.experts.count == 0) return;
    if (!is_standard(shape_.residual))
      base::fail_input("model.residual = \"{}\": layers with experts need the standard wiring. Leave it out.", shape_.residual);
    if (shape_.streams.count > 1)
      base::fail_input("model.parscale.streams = {}: not with experts. Leave it out, or use a dense family.", shape_.streams.count);
    if (adapter_.behind_branches())
      base::fail_input("model.adapter.style = {}: not behind layers with experts. Use model.adapter.style = adaptformer, or LoRA on {}.",
                       base::enum_name(kAdapterStyleNames, adapter_.style), family_.linear_layers);
  }

  // Whether the model has other parameters in the place of these neighbours.
  bool is_replaced(const std::vector<Parameter>& dense) const {
    if (!forms_) return false;
    const auto replaced = [&](const Parameter& one) { return forms_->kind_of(one) == WeightFormRule::Kind::replaced; };
    const bool any = std::any_of(dense.begin(), dense.end(), replaced);
    CAIRN_CHECK(!any || std::all_of(dense.begin(), dense.end(), replaced), "{} and its neighbours: only some are replaced",
                dense.front().name);
    return any;
  }

  void add_forms(Linear& linear, const std::vector<Parameter>& dense) {
    const auto plain = [&](const Parameter& one) { return !forms_ || forms_->kind_of(one) == WeightFormRule::Kind::plain; };
    if (std::all_of(dense.begin(), dense.end(), plain)) return;
    for (size_t i = 0; i < dense.size(); ++i) {
      std::optional<mesh::ParamId> weight;
      if (linear.weight.count > 0) weight = mesh::ParamId{linear.weight.first + static_cast<int32_t>(i)};
      linear.forms.push_back(plain(dense[i]) ? make_plain_weight(dense[i], *weight) : forms_->make(*this, dense[i], weight));
    }
  }

  // The head has an adapter only where it is named: "*" stands for the layers of the blocks.
  bool adapts_head() const {
    const std::string& head = family_.names.head;
    const bool named = adapter_.rank > 0 && std::count(adapter_.targets.begin(), adapter_.targets.end(), head) > 0;
    if (named && shape_.tied)
      base::fail_input("model.adapter.targets = \"{}\": the head of this model is its embedding table (tied). Leave it out.", head);
    return named || (served_ && !shape_.tied && served_->any_adapts(head));
  }

  void add_adapters(Linear& linear, const std::vector<Part>& outs, const Part& in) {
    for (size_t i = 0; i < outs.size(); ++i) {
      const Part& out = outs[i];
      const bool served = served_ && served_->any_adapts(out.name);
      if (!served && !adapter_.targets_module(out.name)) continue;
      const AdaptedWeight of{.name = out.name,
                             .weight = {linear.weight.first + static_cast<int32_t>(i)},
                             .in = in.width,
                             .out = out.width,
                             .fan_in_fan_out = linear.fan_in_fan_out};
      if (served) {
        linear.adapters.push_back({make_served_adapter(served_, of), static_cast<int32_t>(i)});
        continue;
      }
      linear.adapters.push_back({adapter_.kind == AdapterKind::mos ? add_pooled(of)
                                 : adapter_.modules > 1            ? add_in_modules(of, out, in)
                                                                   : add_low_rank(of, out, in),
                                 static_cast<int32_t>(i)});
    }
  }

  // a is random and b is 0, so a new adapter changes nothing.
  std::shared_ptr<const LinearAdapter> add_low_rank(const AdaptedWeight& of, const Part& out, const Part& in) {
    const mesh::ParamId a = Model::add({.name = out.name + ".lora_A.weight",
                                        .shape = {adapter_.rank, in.width},
                                        .axes = {"rank", in.axis},
                                        .role = Parameter::Role::adapter,
                                        .deviation = deviation_of_a(in.width),
                                        .head_width = head_width(in),
                                        .queries_per_key = queries_per_key(in)});
    const mesh::ParamId b = Model::add({.name = out.name + ".lora_B.weight",
                                        .shape = {out.width, adapter_.rank},
                                        .axes = {out.axis, "rank"},
                                        .role = Parameter::Role::adapter,
                                        .init = Parameter::Init::zeros,
                                        .head_width = head_width(out),
                                        .queries_per_key = queries_per_key(out)});
    return make_low_rank_adapter(adapter_, of, a, b);
  }

  std::shared_ptr<const LinearAdapter> add_in_modules(const AdaptedWeight& of, const Part& out, const Part& in) {
    AdapterMatrix a = add_adapter_matrix(out.name + ".lora_A", Part{"", adapter_.rank, "rank"}, in, AdapterShare::down, /*bias=*/false);
    AdapterMatrix b = add_adapter_matrix(out.name + ".lora_B", out, Part{"", adapter_.rank, "rank"}, AdapterShare::up, /*bias=*/false);
    return make_module_adapter(adapter_, of, std::move(a), std::move(b));
  }

  // A matrix of an adapter: the one that narrows (AdapterShare::down) is random, the one that widens is 0. One parameter, or modules.
  AdapterMatrix add_adapter_matrix(const std::string& name, const Part& out, const Part& in, AdapterShare side, bool bias) {
    const bool split = adapter_.modules > 1 && adapter_.share != side;
    AdapterMatrix::Parts parts{.name = name, .out = out.width, .in = in.width, .modules = split ? adapter_.modules : 1};
    parts.split = adapter_.split, parts.seed = adapter_.mask_seed;
    const Part& wide = side == AdapterShare::down ? in : out;
    Parameter matrix{.name = name + ".weight",
                     .shape = {out.width, in.width},
                     .axes = {out.axis, in.axis},
                     .role = Parameter::Role::adapter,
                     .init = side == AdapterShare::down ? Parameter::Init::normal : Parameter::Init::zeros,
                     .deviation = deviation_of_a(in.width),
                     .head_width = head_width(wide),
                     .queries_per_key = queries_per_key(wide)};
    Parameter offset{
        .name = name + ".bias", .shape = {out.width}, .axes = {out.axis}, .role = Parameter::Role::adapter, .init = Parameter::Init::zeros};
    if (!split) {
      parts.weight = Model::add(std::move(matrix));
      if (bias) parts.bias = Model::add(std::move(offset));
      return AdapterMatrix(std::move(parts));
    }
    const AdapterMatrix sizes(parts);  // checks them
    const auto add = [&](Parameter one, int64_t module, const char* what) {
      one.name = fmt::format("{}.modules.{}.{}", name, module, what);
      one.module_of = name, one.module = module, one.modules = adapter_.modules;
      return Model::add(std::move(one));
    };
    for (int64_t n = 0; n < adapter_.modules; ++n) {
      matrix.shape = {sizes.module_elements(n), 1}, matrix.axes = {"module", "one"};
      if (const mesh::ParamId id = add(matrix, n, "weight"); n == 0) parts.weight = id;
    }
    for (int64_t n = 0; bias && n < adapter_.modules; ++n)
      if (const mesh::ParamId id = add(offset, n, "bias"); n == 0) parts.bias = id;
    return in_modules_.emplace_back(std::move(parts));
  }

  void check_branch_adapters() const {
    if (!adapter_.on_branches()) return;
    const std::string style(base::enum_name(kAdapterStyleNames, adapter_.style));
    if (!is_standard(shape_.residual))
      base::fail_input("model.adapter.style = {}: not with model.residual = {}. Use the standard wiring, or adapters on linear layers.",
                       style, shape_.residual);
    if (shape_.streams.count > 1)
      base::fail_input("model.adapter.style = {}: not with model.parscale.streams = {}. Leave one of the two out.", style,
                       shape_.streams.count);
    if (adapter_.behind_branches() && shape_.dropout > 0)
      base::fail_input("model.adapter.style = {}: not with model.dropout = {}. Use model.adapter.dropout.", style, shape_.dropout);
  }

  bool has_adapter(bool attention) const { return adapter_.on_branches() && (!attention || adapter_.style == AdapterStyle::houlsby); }

  std::unique_ptr<Block> make_branch_adapter(int64_t layer, bool attention, AdapterIo io) {
    const std::string at = fmt::format("{}.{}.{}_adapter", family_.names.layers, layer, attention ? "attention" : "mlp");
    const auto gain = [&](const char* what, Parameter::Init init) {
      return Model::add({.name = fmt::format("{}.norm.{}", at, what),
                         .shape = {shape_.embed},
                         .axes = {"embed"},
                         .role = Parameter::Role::adapter,
                         .init = init});
    };
    Norm norm{.kind = Norm::Kind::layer, .eps = shape_.norm_eps};
    norm.weight = gain("weight", Parameter::Init::ones);
    norm.bias = gain("bias", Parameter::Init::zeros);
    const Part wide{"", shape_.embed, "embed"}, narrow{"", adapter_.rank, "rank"};
    AdapterMatrix down = add_adapter_matrix(at + ".down", narrow, wide, AdapterShare::down, /*bias=*/true);
    AdapterMatrix up = add_adapter_matrix(at + ".up", wide, narrow, AdapterShare::up, /*bias=*/true);
    return make_adapter_block(shape_, adapter_, std::move(io), {.norm = norm, .down = std::move(down), .up = std::move(up)});
  }

  // That of a uniform distribution in +-1 / sqrt(width), with which PEFT starts.
  static double deviation_of_a(int64_t width) { return 1 / std::sqrt(3.0 * static_cast<double>(width)); }

  // Parameters that all layers share, and which rows of them each layer takes.
  struct Pool {
    mesh::ParamId a, b;
    PoolIndex index;
  };

  std::shared_ptr<const LinearAdapter> add_pooled(const AdaptedWeight& of) {
    const std::string before = family_.names.layers + ".";
    const size_t dot = of.name.find('.', before.size());
    const int64_t layer = std::stoll(of.name.substr(before.size(), dot - before.size()));
    const std::string kind = of.name.substr(dot + 1);
    if (!pools_.contains(kind)) pools_[kind] = add_pool(kind, of);
    const Pool& pool = pools_[kind];
    for (const mesh::ParamId& id : {pool.a, pool.b}) ++parameters()[static_cast<size_t>(id.first)].uses;
    return make_pooled_adapter(adapter_, of, pool.a, pool.b, "adapters." + kind, layer);
  }

  Pool add_pool(const std::string& kind, const AdaptedWeight& of) {
    check_pools(adapter_, shape_.layers, kind, of.in, of.out);
    const int64_t rows = pool_rows(adapter_, shape_.layers);
    const auto add = [&](const char* side, int64_t width, Parameter::Init init) {
      return Model::add({.name = "adapters." + kind + side,
                         .shape = {rows, width / adapter_.shards},
                         .axes = {"pool", "shard"},
                         .role = Parameter::Role::adapter,
                         .init = init,
                         .deviation = deviation_of_a(width),
                         .uses = 0,
                         .of_many_layers = true});
    };
    return {add(".pool_a", of.in, Parameter::Init::normal), add(".pool_b", of.out, Parameter::Init::zeros),
            make_pool_index(adapter_, kind, shape_.layers)};
  }

  DecoderShape shape_;
  AdapterShape adapter_;
  std::shared_ptr<const ServedAdapters> served_;
  std::shared_ptr<const WeightFormRule> forms_;  // null: all weights are plain
  std::map<std::string, Pool> pools_;            // by kind of layer
  std::vector<AdapterMatrix> in_modules_;        // matrices of adapters that are split
  const Family& family_;
};

}  // namespace cairn::model
