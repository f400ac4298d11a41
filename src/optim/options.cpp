#include "optim/options.h"

#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace cairn::optim {

base::Schema<OptimOptions> optim_schema() {
  using O = OptimOptions;
  return {
      "optim",
      "The inner update rule and its learning rate.",
      {{"kind", &O::kind, "Update rule.", base::one_of(optimizer_names()), {"optimizer"}},
       {"learning_rate", &O::learning_rate, "Highest learning rate of the schedule.", base::at_least(0), {"lr"}},
       {"beta1", &O::beta1, "Decay of the first moment (adamw, and what muon leaves to it).", base::between(0, 0.9999)},
       {"beta2", &O::beta2, "Decay of the second moment (adamw, and what muon leaves to it).", base::between(0, 0.99999)},
       {"eps", &O::eps, "Added to the root of the second moment; for adafactor the least that root may be.", base::more_than(0)},
       {"moments", &O::moments, "Number format of adamw's two moments; bf16 halves what it keeps, and rounds to the nearest.",
        kStateDtypeNames},
       {"rounding", &O::rounding,
        "How updates are rounded where train.parameters = bf16: stochastic keeps small ones on the average; nearest loses those below half "
        "of the last place, as PyTorch's AdamW on bf16 weights does.",
        kRoundingNames},
       {"momentum", &O::momentum, "Decay of the momentum of sgd and muon; 0 for sgd keeps none.", base::between(0, 0.9999)},
       {"nesterov", &O::nesterov, "Whether sgd and muon look ahead along their momentum."},
       {"weight_decay", &O::weight_decay, "Decay of matrices, a share of the learning rate; gains and biases are not decayed.",
        base::at_least(0)},
       {"decay_decoupled", &O::decay_decoupled, "For sgd: decay beside the gradient (SGDW); false adds it to the gradient (L2)."},
       {"muon_scale", &O::muon_scale,
        "Size of muon's steps: rms is 0.2 sqrt(max(rows, columns)), as large as those of adamw; spectral is sqrt(max(1, rows / columns)).",
        kMuonScaleNames},
       {"muon_iterations", &O::muon_iterations, "Newton-Schulz iterations of muon.", base::between(1, 20)},
       {"muon_adamw_share", &O::muon_adamw_share,
        "Learning rate of what muon leaves to adamw (tables, head, gains, biases), as a share of learning_rate.", base::at_least(0)},
       {"factor_decay", &O::factor_decay, "For adafactor: the second moment of step t decays by 1 - t^-factor_decay.",
        base::between(0.01, 1)},
       {"factor_clip", &O::factor_clip, "For adafactor: largest root mean square of an update.", base::more_than(0)},
       {"factor_beta1", &O::factor_beta1, "For adafactor: decay of a first moment of the updates; 0 keeps none.", base::between(0, 0.9999)},
       {"relative_step", &O::relative_step,
        "For adafactor: steps as a share of the parameter's root mean square (at least 0.001), and at most 1 / sqrt(t) of it."},
       {"clip", &O::clip, "Largest norm of the whole gradient; 0 does not clip.", base::at_least(0), {"max_grad_norm", "max_norm"}},
       {"schedule",
        &O::schedule,
        "Shape of the learning rate after the warm-up.",
        base::one_of(schedule_names()),
        {"lr_scheduler", "lr_scheduler_type"}},
       {"warmup_steps", &O::warmup_steps, "Steps over which the learning rate rises linearly from 0.", base::at_least(0)},
       {"final_share", &O::final_share, "Learning rate at the end, as a share of the highest.", base::between(0, 1), {"min_lr_ratio"}},
       {"decay_share", &O::decay_share, "For wsd: share of the run over which the learning rate falls at its end.", base::between(0, 1)},
       {"decay_shape", &O::decay_shape, "For wsd: how it falls.", base::one_of(decay_shapes())}}};
}

}  // namespace cairn::optim
