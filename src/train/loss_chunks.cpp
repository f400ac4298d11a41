#include "train/loss_chunks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/check.h"
#include "model/model.h"
#include "parallel/plan.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

constexpr double kPartBytes = 1 << 29;

// Empty: they may come in parts.
std::string why_whole(const Settings& settings, const parallel::Plan& plan) {
  if (settings.model.kind == "classifier") return "a classifier has few logits: leave it out";
  if (settings.data.kind == "preference") return "pairs of answers are compared whole: leave it out, or lower train.micro_batch";
  if (settings.train.method != "gradient")
    return fmt::format("train.method = {} makes its passes in its own way, with whole logits: leave it out", settings.train.method);
  if (settings.layout.recompute.mode == "stage") return "a stage that is computed again has logits twice: use recompute.mode = full";
  if (plan.mesh.extent("tp") > 1) return "ranks along mesh.tp have a part of each row of logits already: leave it out";
  if (plan.mesh.extent("pp") > 1) return "is for mesh.pp = 1: use more pipeline.micro_batches instead";
  return {};
}

}  // namespace

void check_loss_chunks(const Settings& settings, const parallel::Plan& plan) {
  if (settings.train.loss_chunks <= 1) return;
  if (const std::string why = why_whole(settings, plan); !why.empty())
    base::fail_input("train.loss_chunks = {}: {}", settings.train.loss_chunks, why);
}

int64_t loss_chunks_of(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu) {
  if (settings.train.loss_chunks > 0) return settings.train.loss_chunks;
  if (!on_gpu || !why_whole(settings, plan).empty()) return 1;
  double row_elements = 0;
  for (const model::BlockOp& one : model.blocks().back()->card().operations)
    if (one.name == "logits") row_elements = one.saved_elements_per_token;
  const double rows = static_cast<double>(plan.micro_batch) * static_cast<double>(std::max<int64_t>(1, length)) / plan.mesh.extent("cp");
  const double bytes = rows * row_elements * (settings.train.precision == "bf16" ? 2 : 4);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(bytes / kPartBytes)));
}

}  // namespace cairn::train
