// Which adapters a model has: trained additions to frozen linear layers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

enum class AdapterKind {
  lora,        // w + scale b a with a [rank, in] and b [out, rank] of each layer's own (arXiv:2106.09685)
  mos,         // the same, where a and b are put together from pools of pieces that all layers share (MoS)
  bottleneck,  // narrow layers beside branches of the residual stream, or behind them (AdapterStyle)
  mosa         // any style but pools, in modules that training passes use one by one (MoSA)
};
inline constexpr base::EnumName<AdapterKind> kAdapterKindNames[] = {
    {AdapterKind::lora, "lora"}, {AdapterKind::mos, "mos"}, {AdapterKind::bottleneck, "bottleneck"}, {AdapterKind::mosa, "mosa"}};

// Where an adapter is and what it computes. up [width, rank] and down [rank, width] have biases, and norm is a layer norm of its own:
enum class AdapterStyle {
  lora,         // on linear layers: scale up down x, without biases and norm
  adaptformer,  // beside the MLP: x + mlp(x) + scale up(gelu(down(norm(x))))  (arXiv:2205.13535)
  pfeiffer,     // behind the MLP: with h = mlp(x), x + h + scale up(relu(down(norm(h))))  (arXiv:2005.00247)
  houlsby       // behind attention and MLP, the same with silu  (arXiv:1902.00751)
};
inline constexpr base::EnumName<AdapterStyle> kAdapterStyleNames[] = {{AdapterStyle::lora, "lora"},
                                                                      {AdapterStyle::adaptformer, "adaptformer"},
                                                                      {AdapterStyle::pfeiffer, "pfeiffer"},
                                                                      {AdapterStyle::houlsby, "houlsby"}};

// mosa: which matrix is not split into modules.
enum class AdapterShare { down, up, none };
inline constexpr base::EnumName<AdapterShare> kAdapterShareNames[] = {
    {AdapterShare::down, "down"}, {AdapterShare::up, "up"}, {AdapterShare::none, "none"}};

// mosa: what is split at random into equal modules: all elements of a matrix, or those of each row or column by itself.
enum class ModuleSplit { all, row, column };
inline constexpr base::EnumName<ModuleSplit> kModuleSplitNames[] = {
    {ModuleSplit::all, "all"}, {ModuleSplit::row, "row"}, {ModuleSplit::column, "column"}};

// A value. Only the adapters are trained.
struct AdapterShape {
  int64_t rank = 0;  // 0: none
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  // layer names or their last parts; * stands for anything
  bool by_root = false;                                     // rsLoRA: the scale is alpha / sqrt(rank), not alpha / rank
  double dropout = 0;                                       // of what the adapters read
  AdapterKind kind = AdapterKind::lora;
  // mos. A pool holds equivalent_rank vectors for each layer, cut into `shards` pieces each.
  int64_t equivalent_rank = 0;
  int64_t private_rank = 0;  // of these vectors, those that one layer has for itself
  int64_t shards = 1;
  int64_t index_seed = 0;   // decides which pieces each layer takes
  bool dissociate = true;   // a and b take different pieces
  bool share_rows = false;  // all layers take the same pieces (the baseline)
  // bottleneck and mosa; their dropout is of what the activation gives.
  AdapterStyle style = AdapterStyle::lora;
  double branch_scale = 0;  // 0: that of the style
  // mosa
  int64_t modules = 1;
  AdapterShare share = AdapterShare::down;
  ModuleSplit split = ModuleSplit::all;
  int64_t mask_seed = 0;  // decides which elements each module has
  bool operator==(const AdapterShape&) const = default;

  // Whether they are on branches of the residual stream, not on linear layers; and whether they read the result of a whole branch.
  bool on_branches() const { return rank > 0 && style != AdapterStyle::lora; }
  bool behind_branches() const { return on_branches() && style != AdapterStyle::adaptformer; }
  // Whether training passes use one module at a time.
  bool in_modules() const { return rank > 0 && kind == AdapterKind::mosa; }
  double scale() const;
  bool targets_module(const std::string& module) const;
};

// The recipe's model.adapter.* keys; model.lora.* are the short form.
struct AdapterOptions {
  int64_t rank = 0;
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "v_proj"};
  std::string from;  // an adapter to start from
  bool by_root = false;
  double dropout = 0;
  AdapterKind kind = AdapterKind::lora;
  int64_t equivalent_rank = 2;
  int64_t private_rank = 0;
  int64_t shards = 4;
  int64_t index_seed = 0;
  bool dissociate = true;
  bool share_rows = false;
  AdapterStyle style = AdapterStyle::adaptformer;
  double branch_scale = 0;
  int64_t modules = 4;
  AdapterShare share = AdapterShare::down;
  ModuleSplit split = ModuleSplit::all;
  int64_t mask_seed = 0;
  // Of training in modules, not of the shape: how much two passes with different modules are made to agree, and how much the second one's
  // own loss counts.
  double consistency = 1, second_loss = 0;

  AdapterShape shape() const;
  bool operator==(const AdapterOptions&) const = default;
};
// The options that give this shape.
AdapterOptions options_of(const AdapterShape& shape, std::string from);
base::Schema<AdapterOptions> lora_schema();
base::Schema<AdapterOptions> adapter_schema();

}  // namespace cairn::model
