#include "optim/options.h"

#include "optim/optimizer.h"

namespace cairn::optim {

base::Schema<OptimOptions> optim_schema() {
  using O = OptimOptions;
  return {"optim",
          "The inner update rule and its learning rate.",
          {{"kind", &O::kind, "Update rule.", base::one_of(optimizer_names()), {"optimizer"}},
           {"learning_rate", &O::learning_rate, "Highest learning rate of the schedule.", base::at_least(0), {"lr"}},
           {"beta1", &O::beta1, "Decay of the first moment.", base::between(0, 0.9999)},
           {"beta2", &O::beta2, "Decay of the second moment.", base::between(0, 0.99999)},
           {"eps", &O::eps, "Added to the root of the second moment.", base::more_than(0)},
           {"weight_decay", &O::weight_decay, "Decoupled decay of matrices; gains and biases are not decayed.", base::at_least(0)},
           {"clip", &O::clip, "Largest norm of the whole gradient; 0 does not clip.", base::at_least(0), {"max_grad_norm", "max_norm"}},
           {"schedule",
            &O::schedule,
            "Shape of the learning rate after the warm-up.",
            base::one_of({"constant", "linear", "cosine"}),
            {"lr_scheduler", "lr_scheduler_type"}},
           {"warmup_steps", &O::warmup_steps, "Steps over which the learning rate rises linearly from 0.", base::at_least(0)},
           {"final_share", &O::final_share, "Learning rate at the end, as a share of the highest.", base::between(0, 1)}}};
}

}  // namespace cairn::optim
