// Which adapters a model has: trained additions to frozen linear layers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

enum class AdapterKind {
  lora,  // w + scale b a with a [rank, in] and b [out, rank] of each layer's own (arXiv:2106.09685)
  mos    // the same, where a and b are put together from pools of pieces that all layers share (MoS)
};
inline constexpr base::EnumName<AdapterKind> kAdapterKindNames[] = {{AdapterKind::lora, "lora"}, {AdapterKind::mos, "mos"}};

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
  bool operator==(const AdapterShape&) const = default;

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

  AdapterShape shape() const;
  bool operator==(const AdapterOptions&) const = default;
};
// The options that give this shape.
AdapterOptions options_of(const AdapterShape& shape, std::string from);
base::Schema<AdapterOptions> lora_schema();
base::Schema<AdapterOptions> adapter_schema();

}  // namespace cairn::model
