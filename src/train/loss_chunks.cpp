#include "train/loss_chunks.h"

#include <string>

#include <fmt/format.h>

#include "base/check.h"
#include "parallel/plan.h"
#include "train/settings.h"

namespace cairn::train {

void check_loss_chunks(const Settings& settings, const parallel::Plan& plan) {
  if (settings.train.loss_chunks == 1) return;
  const auto refuse = [&](const std::string& why) { base::fail_input("train.loss_chunks = {}: {}", settings.train.loss_chunks, why); };
  if (settings.model.kind == "classifier") refuse("a classifier has few logits: leave it out");
  if (settings.data.kind == "preference") refuse("pairs of answers are compared whole: leave it out, or lower train.micro_batch");
  if (settings.train.method != "gradient")
    refuse(fmt::format("train.method = {} makes its passes in its own way, with whole logits: leave it out", settings.train.method));
  if (settings.layout.recompute.mode == "stage") refuse("a stage that is computed again has logits twice: use recompute.mode = full");
  if (plan.mesh.extent("tp") > 1) refuse("ranks along mesh.tp have a part of each row of logits already: leave it out");
  if (plan.mesh.extent("pp") > 1) refuse("is for mesh.pp = 1: use more pipeline.micro_batches instead");
}

}  // namespace cairn::train
