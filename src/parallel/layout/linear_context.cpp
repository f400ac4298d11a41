#include "parallel/layout/linear_context.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/text.h"
#include "comm/collectives/choose_algorithm.h"
#include "mesh/box.h"
#include "model/families/config.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

std::string in_words(double seconds) { return base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))); }

// What a rank can cut a state into: rows of value_dim elements.
int64_t rows_of(const model::LinearAttentionShape& linear, const LinearPass& pass, int64_t heads) {
  return pass.sequences * heads * linear.key_dim;
}

// Of the rank that has most heads.
int64_t local_heads(const Plan& plan, const model::LinearAttentionShape& linear) {
  return mesh::even_part(linear.heads, plan.mesh.extent("tp"), 0).length();
}

}  // namespace

LinearContext predict_linear_context(const Plan& plan, const model::Model& model, const LinearPass& pass) {
  LinearContext found;
  const int cp = plan.mesh.extent("cp");
  const std::string config = model.config_json();
  if (cp == 1 || config.empty()) return found;
  const model::LinearAttentionShape linear = model::parse_config(config, "the model").linear;
  for (const auto& block : model.blocks())
    found.layers += std::ranges::any_of(block->card().operations, [](const auto& one) { return one.name == "linear_attention"; }) ? 1 : 0;
  if (found.layers == 0) return found;
  const int64_t heads = local_heads(plan, linear), rows = rows_of(linear, pass, heads);
  const int64_t element = plan.context.state_dtype == model::StateDtype::bf16 ? 2 : 4;
  found.state_bytes = rows * linear.value_dim * element;
  const double tokens = static_cast<double>(pass.sequences * pass.length) / cp;
  found.within_s = tokens * static_cast<double>(pass.chunk * heads * (linear.key_dim + linear.value_dim)) / pass.flops_per_s;
  const double latency_s = base::seconds(pass.links.latency);
  switch (plan.context.linear) {
    case model::LinearForm::zeco:
      found.blocks = plan.context.scan_blocks > 0 ? plan.context.scan_blocks : comm::choose_scan_blocks(found.state_bytes, cp, pass.links);
      found.blocks = std::clamp<int64_t>(found.blocks, 1, std::max<int64_t>(1, rows));
      found.sent_bytes = found.state_bytes;
      found.exchange_s = base::seconds(comm::scan_cost(found.state_bytes, cp, found.blocks, pass.links));
      found.exposed_s = std::max(0.0, found.exchange_s - found.within_s);
      break;
    case model::LinearForm::lasp1:
      found.sent_bytes = found.state_bytes;
      found.exchange_s = (cp - 1) * (static_cast<double>(found.state_bytes) / pass.links.bytes_per_s + latency_s);
      found.exposed_s = found.exchange_s + (cp - 1) * found.within_s;
      break;
    case model::LinearForm::lasp2:
      found.sent_bytes = (cp - 1) * rows * (linear.value_dim + 1) * element;  // decays travel beside states
      found.exchange_s = static_cast<double>(found.sent_bytes) / pass.links.bytes_per_s + latency_s;
      found.exposed_s = std::max(0.0, found.exchange_s - found.within_s);
      break;
  }
  return found;
}

std::string describe_linear_context(const Plan& plan, const model::Model& model, const LinearPass& pass) {
  const LinearContext c = predict_linear_context(plan, model, pass);
  if (c.layers == 0) return {};
  std::string how(base::enum_name(kLinearFormNames, plan.context.linear));
  if (c.blocks > 0) how += fmt::format(" in {}", base::plural(c.blocks, "block"));
  if (plan.context.scan_blocks > c.blocks && c.blocks > 0) how += fmt::format(" (not {}: a state has no more rows)", plan.context.scan_blocks);
  return fmt::format(
      "{} of linear attention along cp = {}: {}. A layer's state is {}; a rank sends {} in each direction, predicted to take {}, {} of it "
      "behind no computation",
      base::plural(c.layers, "layer"), plan.mesh.extent("cp"), how, base::human_bytes(c.state_bytes), base::human_bytes(c.sent_bytes),
      in_words(c.exchange_s), in_words(c.exposed_s));
}

}  // namespace cairn::parallel
