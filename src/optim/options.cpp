#include "optim/options.h"

#include <algorithm>

#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace cairn::optim {

base::Schema<OptimOptions> optim_schema() {
  using O = OptimOptions;
  return {
      "optim",
      "The optimizer and its learning-rate schedule.",
      {{"kind", &O::kind, "Optimizer.", base::one_of(optimizer_names()), {"optimizer"}},
       {"learning_rate", &O::learning_rate, "Highest learning rate of the schedule.", base::at_least(0), {"lr"}},
       {"beta1", &O::beta1, "Decay of the first moment (adamw, also inside muon).", base::between(0, 0.9999)},
       {"beta2", &O::beta2, "Decay of the second moment (adamw, also inside muon).", base::between(0, 0.99999)},
       {"eps", &O::eps, "Added to the root of the second moment; for adafactor, its lower bound.", base::more_than(0)},
       {"moments", &O::moments, "Dtype of adamw's two moments; bf16 halves their memory and rounds to nearest.", kStateDtypeNames},
       {"rounding", &O::rounding,
        "How updates of bf16 parameters (train.parameters = bf16) are rounded: stochastic keeps small updates on average; nearest loses "
        "those "
        "below half of the last place, as PyTorch's AdamW on bf16 weights does.",
        kRoundingNames},
       {"momentum", &O::momentum, "Momentum of sgd and muon; 0 for sgd keeps no state.", base::between(0, 0.9999)},
       {"nesterov", &O::nesterov, "Nesterov momentum for sgd and muon."},
       {"weight_decay", &O::weight_decay, "Weight decay of matrices, times the learning rate; gains and biases are not decayed.",
        base::at_least(0)},
       {"decay_decoupled", &O::decay_decoupled, "For sgd: decoupled weight decay (SGDW); false adds it to the gradient (L2)."},
       {"muon_scale", &O::muon_scale,
        "Size of muon's steps: rms is 0.2 sqrt(max(inputs, outputs)) of a layer, as large as those of adamw; spectral is sqrt(max(1, "
        "outputs / "
        "inputs)).",
        kMuonScaleNames},
       {"muon_iterations", &O::muon_iterations, "Newton-Schulz iterations of muon.", base::between(1, 20)},
       {"muon_adamw_lr_ratio",
        &O::muon_adamw_lr_ratio,
        "Learning rate of the parameters that muon leaves to adamw (embeddings, head, gains, biases), as a fraction of learning_rate.",
        base::at_least(0),
        {},
        {"muon_adamw_share"}},
       {"adafactor_decay_rate",
        &O::adafactor_decay_rate,
        "For adafactor: the second moment of step t decays by 1 - t^-adafactor_decay_rate.",
        base::between(0.01, 1),
        {},
        {"factor_decay"}},
       {"adafactor_clip_threshold",
        &O::adafactor_clip_threshold,
        "For adafactor: largest root mean square of an update.",
        base::more_than(0),
        {},
        {"factor_clip"}},
       {"adafactor_beta1",
        &O::adafactor_beta1,
        "For adafactor: decay of a first moment of the updates; 0 keeps no first moment.",
        base::between(0, 0.9999),
        {},
        {"factor_beta1"}},
       {"relative_step", &O::relative_step,
        "For adafactor: steps relative to the parameter's root mean square (at least 0.001), with a rate of at most 1 / sqrt(t)."},
       {"max_grad_norm",
        &O::max_grad_norm,
        "Largest norm of the whole gradient; 0 does not clip.",
        base::at_least(0),
        {"max_norm"},
        {"clip"}},
       {"schedule",
        &O::schedule,
        "Shape of the learning rate after the warm-up.",
        base::one_of(schedule_names()),
        {"lr_scheduler", "lr_scheduler_type"}},
       {"warmup_steps", &O::warmup_steps,
        "Steps over which the learning rate rises linearly from 0; without this key two fifths of train.steps, at most 120.",
        base::at_least(0)},
       {"min_lr_ratio", &O::min_lr_ratio, "Final learning rate, as a fraction of the highest.", base::between(0, 1), {}, {"final_share"}},
       {"decay_share", &O::decay_share, "For wsd: fraction of the run that the decay at its end takes.", base::between(0, 1)},
       {"decay_shape", &O::decay_shape, "For wsd: shape of the decay.", base::one_of(decay_shapes())}}};
}

int64_t default_warmup_steps(int64_t steps) { return std::min(OptimOptions{}.warmup_steps, steps * 2 / 5); }

}  // namespace cairn::optim
