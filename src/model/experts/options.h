// Experts in a recipe (experts/shape.h).
#pragma once
#include <cstdint>

#include "base/enum_names.h"
#include "base/schema.h"

namespace cairn::model {

struct DecoderShape;

// What keeps the load of experts even: a loss, biases that follow the load, or nothing.
enum class ExpertBalance { aux, bias, none };
inline constexpr base::EnumName<ExpertBalance> kExpertBalanceNames[] = {
    {ExpertBalance::aux, "aux"}, {ExpertBalance::bias, "bias"}, {ExpertBalance::none, "none"}};

// The recipe's model.moe.* keys.
struct ExpertOptions {
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t width = 0;
  int64_t shared_width = 0;
  int64_t every = 1;
  bool normalize = true;
  ExpertBalance balance = ExpertBalance::aux;
  double aux_loss = 0.01;
  double z_loss = 0;
  double bias_rate = 0.001;
  bool operator==(const ExpertOptions&) const = default;
};
base::Schema<ExpertOptions> expert_schema();

// Sets the experts of a new model of a family that has some; refuses keys that differ from the defaults for other families, and what cannot
// work.
void set_experts(DecoderShape& shape, const ExpertOptions& options);
// Sets what of the options concerns training alone: the losses and the biases.
void set_expert_training(DecoderShape& shape, const ExpertOptions& options);
// The options that give the shape's experts, on top of `options`.
ExpertOptions expert_options_of(const DecoderShape& shape, ExpertOptions options = {});

}  // namespace cairn::model
