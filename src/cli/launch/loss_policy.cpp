#include "cli/launch/loss_policy.h"

#include <chrono>

#include <fmt/format.h>

#include "base/check.h"
#include "train/build/resume_from.h"
#include "train/options.h"
#include "train/settings.h"

namespace cairn::cli {

train::LossPolicy loss_policy(base::Recipe recipe) {
  const train::TrainOptions options = recipe.read(train::train_schema());
  return {.on_loss = options.on_loss,
          .max_restarts = options.max_restarts,
          .replacement_timeout = std::chrono::nanoseconds(static_cast<int64_t>(options.replacement_timeout_s * 1e9))};
}

void check_loss_policy(base::Recipe recipe, const std::string& unattended) {
  const std::string key = fmt::format("train.on_loss = {}", train::name_of(loss_policy(recipe).on_loss));
  if (loss_policy(recipe).on_loss == train::OnLoss::stop) return;
  if (!unattended.empty())
    base::fail_input(
        "{}: {}, so nobody can start them again: start one `cairn train --nproc N` per machine (with --nnodes and --node-rank where there "
        "are several), or use train.on_loss = stop and --resume auto",
        key, unattended);
  if (train::is_remote_island(recipe.read(train::remote_island_schema())))
    base::fail_input(
        "{}: a remote island that is lost leaves the others going on, and joins them again when it is started with --resume auto: use "
        "train.on_loss = stop",
        key);
  if (train::separate_islands(recipe) > 1)
    base::fail_input(
        "{}: islands that step separately go on without one that is lost, and starting it again alone is not supported in one world: use "
        "train.on_loss = stop, or remote islands (--island), which can be started again one by one",
        key);
}

}  // namespace cairn::cli
