#include "train/loss_chunks.h"

#include <algorithm>
#include <cmath>

#include "model/model.h"
#include "parallel/plan.h"
#include "train/build/check_settings.h"
#include "train/planned.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

constexpr double kPartBytes = 1 << 29;

}  // namespace

int64_t loss_chunks_of(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu) {
  if (settings.train.loss_chunks > 0) return settings.train.loss_chunks;
  if (!on_gpu || !is_allowed(Feature::loss_chunks, settings, plan)) return 1;
  double row_elements = 0;
  for (const model::BlockOp& one : model.blocks().back()->card().operations)
    if (one.name == "logits") row_elements = one.saved_elements_per_token;
  const double rows = static_cast<double>(pass_tokens(settings, plan, length)) / plan.mesh.extent("cp");
  const double bytes = rows * row_elements / plan.mesh.extent("tp") * (settings.train.precision == Precision::bf16 ? 2 : 4);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(bytes / kPartBytes)));
}

}  // namespace cairn::train
