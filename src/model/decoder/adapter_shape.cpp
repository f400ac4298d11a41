#include "model/decoder/adapter_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/name_pattern.h"

namespace cairn::model {

double AdapterShape::scale() const {
  if (on_branches()) return branch_scale > 0 ? branch_scale : style == AdapterStyle::adaptformer ? 0.1 : 1;
  const auto r = static_cast<double>(rank);
  return alpha / (by_root ? std::sqrt(r) : r);
}

bool AdapterShape::targets_module(const std::string& module) const {
  return rank > 0 && !on_branches() && std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
           return matches(target, module) || (module.size() > target.size() && matches("*." + target, module));
         });
}

AdapterShape AdapterOptions::shape() const {
  AdapterShape shape{.rank = rank, .alpha = alpha, .targets = targets, .by_root = by_root, .dropout = dropout, .kind = kind};
  if (kind == AdapterKind::bottleneck || kind == AdapterKind::mosa) shape.style = style, shape.branch_scale = branch_scale;
  if (kind == AdapterKind::mosa) shape.modules = modules, shape.share = share, shape.split = split, shape.mask_seed = mask_seed;
  if (kind != AdapterKind::mos) return shape;
  shape.equivalent_rank = equivalent_rank, shape.private_rank = private_rank, shape.shards = shards;
  shape.index_seed = index_seed, shape.dissociate = dissociate, shape.share_rows = share_rows;
  return shape;
}

AdapterOptions options_of(const AdapterShape& s, std::string from) {
  AdapterOptions options{.rank = s.rank,
                         .alpha = s.alpha,
                         .targets = s.targets,
                         .from = std::move(from),
                         .by_root = s.by_root,
                         .dropout = s.dropout,
                         .kind = s.kind};
  if (s.kind == AdapterKind::bottleneck || s.kind == AdapterKind::mosa) options.style = s.style, options.branch_scale = s.branch_scale;
  if (s.kind == AdapterKind::mosa)
    options.modules = s.modules, options.share = s.share, options.split = s.split, options.mask_seed = s.mask_seed;
  if (s.kind != AdapterKind::mos) return options;
  options.equivalent_rank = s.equivalent_rank, options.private_rank = s.private_rank, options.shards = s.shards;
  options.index_seed = s.index_seed, options.dissociate = s.dissociate, options.share_rows = s.share_rows;
  return options;
}

namespace {

using O = AdapterOptions;

std::vector<base::Key<O>> keys_of_lora() {
  return {
      {"rank", &O::rank, "Rank of the adapters; 0: none.", base::between(0, 65536), {"r"}},
      {"alpha", &O::alpha, "Adapters are scaled by alpha / rank.", base::more_than(0), {"lora_alpha"}},
      {"targets",
       &O::targets,
       "Layers with an adapter: names or their last parts (\"q_proj\"), * for anything. GPT-2 has c_attn, c_fc and c_proj.",
       base::any(),
       {"target_modules"}},
      {"dropout", &O::dropout, "Dropout rate of what the adapters read, in training.", base::between(0, 0.9), {"lora_dropout"}},
      {"by_root",
       &O::by_root,
       "Scale by alpha / sqrt(rank) instead (rsLoRA), so that large ranks learn as fast.",
       base::any(),
       {"use_rslora"}},
      {"from", &O::from,
       "A directory with an adapter in PEFT's format to continue from. It sets the other keys here. Empty: a new adapter.", base::path()}};
}

}  // namespace

base::Schema<AdapterOptions> lora_schema() {
  return {"model.lora", "LoRA adapters on the linear layers of model.from: the short form of model.adapter. Only the adapters are trained.",
          keys_of_lora()};
}

base::Schema<AdapterOptions> adapter_schema() {
  std::vector<base::Key<O>> keys{
      {"kind", &O::kind,
       "lora: two matrices for each layer. mos: layers put theirs together from pools of pieces that all share. "
       "bottleneck: narrow layers on branches of the residual stream. mosa: modules that take turns in training.",
       kAdapterKindNames}};
  for (base::Key<O>& key : keys_of_lora()) keys.push_back(std::move(key));
  keys[1].entry.aliases.push_back("bottleneck");
  const std::vector<base::Key<O>> pools{
      {"equivalent_rank", &O::equivalent_rank, "mos: the rank of a LoRA adapter with as many parameters as the pools.",
       base::between(1, 65536)},
      {"private_rank", &O::private_rank, "mos: of the vectors of a layer, those that no other layer takes.", base::between(0, 65536)},
      {"shards_per_vector", &O::shards, "mos: pieces that a vector is cut into.", base::between(1, 65536)},
      {"index_seed", &O::index_seed, "mos: decides which pieces each layer takes. Adapters with one seed can be averaged.",
       base::at_least(0)},
      {"dissociate", &O::dissociate, "mos: whether the two matrices of a layer take pieces of different places."},
      {"share_rows", &O::share_rows, "mos: all layers take the same pieces (a baseline)."},
      {"style", &O::style,
       "bottleneck, mosa: adaptformer is beside each MLP, pfeiffer behind it, houlsby behind attention and MLP; lora (of mosa) on the "
       "layers "
       "of targets.",
       kAdapterStyleNames},
      {"scale", &O::branch_scale, "bottleneck, mosa: what the adapters add is multiplied by it; 0: 0.1 for adaptformer, else 1.",
       base::at_least(0)},
      {"modules", &O::modules, "mosa: disjoint random parts of a matrix, of which each training pass uses one.", base::between(1, 65536)},
      {"share", &O::share, "mosa: the matrix that is not split, so that every pass trains it.", kAdapterShareNames},
      {"split", &O::split, "mosa: what is split at random: a whole matrix, or each of its rows or columns by itself.", kModuleSplitNames},
      {"mask_seed", &O::mask_seed, "mosa: decides which elements each module has.", base::at_least(0)},
      {"consistency", &O::consistency,
       "mosa: the weight of the divergence between two passes with modules of their own; 0: one pass per step.", base::at_least(0)},
      {"second_ce", &O::second_loss, "mosa: the weight of the second pass' own loss.", base::at_least(0)}};
  keys.insert(keys.end(), pools.begin(), pools.end());
  return {"model.adapter", "Adapters on the linear layers of model.from. Only the adapters are trained.", std::move(keys)};
}

}  // namespace cairn::model
