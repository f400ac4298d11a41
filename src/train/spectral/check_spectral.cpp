#include <fmt/format.h>

#include "base/check.h"
#include "optim/needs.h"
#include "parallel/plan.h"
#include "sync/needs.h"
#include "train/settings.h"
#include "train/spectral/spectral_rounds.h"
#include "train/step_methods.h"

namespace cairn::train {

void check_spectral(const Settings& settings, const parallel::Plan& plan) {
  const model::SpectralOptions& o = settings.model.spectral;
  if (!o.any()) {
    if (o != model::SpectralOptions{})
      base::fail_input("model.spectral.rank = 0: the other keys of model.spectral have no effect. Set the rank, or leave them out.");
    return;
  }
  const std::string key = fmt::format("model.spectral.rank = {}", o.rank);
  if (o.iteration_steps <= o.warmup_steps)
    base::fail_input("model.spectral.iteration_steps = {}: vectors would never reach their learning rate. Use more than warmup_steps = {}.",
                     o.iteration_steps, o.warmup_steps);
  if (settings.adapter.rank > 0)
    base::fail_input(
        "{}: does not work with model.adapter.rank = {}: all linear layers are spectral, and a layer has either. Leave one out.", key,
        settings.adapter.rank);
  if (optim::optimizer_needs(settings.optim.kind).matrix_steps)
    base::fail_input("optim.kind = {}: does not work with {}: it needs the gradient of a whole matrix, and layers have none. Use {}.",
                     settings.optim.kind, key, optim::elementwise_optimizers());
  if (const StepMethod& method = step_method(settings); !method.needs.optimizer || !method.needs.gradients)
    base::fail_input("train.method = {}: does not work with {}: vectors must keep their length after each update. Leave train.method out.",
                     method.name, key);
  const bool apart = parallel::islands_step_separately(plan);
  const auto check_rule = [&](const char* axis, const std::string& kind) {
    if (!sync::needs_of(kind).may_rearrange)
      base::fail_input("sync.{}.kind = {}: does not work with {}: messages may be under way when vectors change places. Use all_reduce{}.",
                       axis, kind, key, apart ? " or diloco" : "");
  };
  check_rule("dp", settings.sync.kind);
  if (!apart) return;
  check_rule("island", settings.island.kind);
  if (const int64_t every = settings.island.outer.every; o.iteration_steps % every != 0)
    base::fail_input(
        "model.spectral.iteration_steps = {}: islands must agree on the vectors that they freeze. Use a multiple of "
        "sync.island.every = {}.",
        o.iteration_steps, every);
}

}  // namespace cairn::train
