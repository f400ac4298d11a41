#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::optim {

// The dtype of a rule's state.
enum class StateDtype { fp32, bf16 };
inline constexpr base::EnumName<StateDtype> kStateDtypeNames[] = {{StateDtype::fp32, "fp32"}, {StateDtype::bf16, "bf16"}};

// How updates of bf16 parameters are rounded.
enum class Rounding { stochastic, nearest };
inline constexpr base::EnumName<Rounding> kRoundingNames[] = {{Rounding::stochastic, "stochastic"}, {Rounding::nearest, "nearest"}};

// The size of Muon's steps (muon.cpp).
enum class MuonScale { rms, spectral };
inline constexpr base::EnumName<MuonScale> kMuonScaleNames[] = {{MuonScale::rms, "rms"}, {MuonScale::spectral, "spectral"}};

// The recipe's optim.* keys.
struct OptimOptions {
  std::string kind = "adamw";  // a name of optimizer_names(); what it needs: needs.h
  double learning_rate = 5e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  StateDtype moments = StateDtype::fp32;
  Rounding rounding = Rounding::stochastic;
  double momentum = 0.95;
  bool nesterov = true;
  bool decay_decoupled = true;
  MuonScale muon_scale = MuonScale::rms;
  int64_t muon_iterations = 5;
  double muon_adamw_lr_ratio = 1.0;
  double adafactor_decay_rate = 0.8;
  double adafactor_clip_threshold = 1.0;
  double adafactor_beta1 = 0.0;
  bool relative_step = false;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 120;
  double min_lr_ratio = 0.02;
  double decay_share = 0.2;
  std::string decay_shape = "1-sqrt";
};

base::Schema<OptimOptions> optim_schema();

// The warm-up of a run of so many steps whose recipe does not say: two fifths of them, at most the 120 of OptimOptions.
int64_t default_warmup_steps(int64_t steps);

}  // namespace cairn::optim
