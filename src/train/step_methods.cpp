#include "train/step_methods.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "parallel/plan.h"
#include "sync/needs.h"
#include "train/settings.h"
#include "train/steps/coded_step.h"
#include "train/steps/dpo_step.h"
#include "train/steps/gradient_step.h"
#include "train/steps/grpo_step.h"
#include "train/steps/masha_step.h"
#include "train/steps/mosa_step.h"
#include "train/steps/one_byte_step.h"
#include "train/steps/retrieval_step.h"
#include "train/steps/supernet_step.h"

namespace cairn::train {

// The registry. A new method is its own files under steps/ and one line here.
const std::vector<StepMethod>& step_methods() {
  static const std::vector<StepMethod> list{
      gradient_method(),  // the default
      dpo_method(),       // chosen by preference data
      grpo_method(),      // chosen by rollouts
      retrieval_method(),  // chosen by queries with passages
      one_byte_method(),  // zeroth-order, one byte per slope
      masha1_method(),    // compressed extragradient, random elements
      masha2_method(),    // compressed extragradient, largest elements
      mosa_method(),      // chosen by adapters in modules
      supernet_method(),  // chosen by choices of depth and width
      coded_method(),     // gradient coding: exact although some ranks are late
  };
  return list;
}

namespace {

bool can_be_named(const StepMethod& method) { return !method.needs.chosen_by_data() && !method.chosen_by; }

// What chooses the method beside train.method and the data; empty: nothing.
std::string chosen_by(const StepMethod& method, const Settings& settings) { return method.chosen_by ? method.chosen_by(settings) : ""; }

}  // namespace

std::vector<std::string> step_method_names() {
  std::vector<std::string> names;
  for (const StepMethod& method : step_methods())
    if (can_be_named(method)) names.push_back(method.name);
  return names;
}

std::string step_method_help() {
  std::vector<std::string> parts;
  for (const StepMethod& method : step_methods())
    if (can_be_named(method)) parts.push_back(fmt::format("{} ({})", method.name, method.help));
  return fmt::format("{}", fmt::join(parts, "; "));
}

const StepMethod& step_method(const Settings& settings) {
  const std::vector<StepMethod>& all = step_methods();
  const bool by_default = settings.train.method == all.front().name;
  const data::DataNeeds& data = settings.data.needs();
  const auto found = std::find_if(all.begin(), all.end(), [&](const StepMethod& one) {
    if (by_default && (data.pairs || data.rollouts || data.retrieval))
      return one.needs.pairs == data.pairs && one.needs.rollouts == data.rollouts && one.needs.retrieval == data.retrieval;
    return one.name == settings.train.method && can_be_named(one);
  });
  if (by_default && !(data.pairs || data.rollouts || data.retrieval))
    for (const StepMethod& one : all)
      if (!chosen_by(one, settings).empty()) return one;
  if (found == all.end()) base::fail_unknown("train.method", settings.train.method, step_method_names());
  return *found;
}

std::vector<Limit> own_passes_limits(std::vector<Limit> more) {
  std::vector<Limit> limits{
      {Feature::fp8, "the method needs losses in full precision: leave it out"},
      {Feature::loss_chunks, "the method makes its passes in its own way, with whole logits: leave it out"},
      {Feature::stream, "the method makes its passes in its own way, over whole sequences: leave it out"},
      {Feature::cuda_graph, "the method decides on the host what a pass does: leave it out"},
      {Feature::check_every, "compares the gradients of ordinary steps: leave it out"},
      {Feature::bf16_gradients, "the method keeps its own sums in fp32: leave it out"},
      {Feature::pairs, "pairs of answers are trained by gradients: leave train.method out"},
      {Feature::rollouts, "answers with advantages are trained by gradients: leave train.method out"},
      {Feature::retrieval, "encoders of texts are trained by gradients: leave train.method out"},
  };
  limits.insert(limits.begin(), more.begin(), more.end());
  return limits;
}

namespace {

// Between islands a method that exchanges messages of its own needs a rule for that, and such a rule needs such a method.
void check_island_rule(const StepMethod& method, const std::string& chosen, const Settings& settings, const parallel::Plan& plan) {
  const std::string& kind = settings.island.kind;
  if (!parallel::islands_step_separately(plan) || sync::needs_of(kind).messages == method.needs.messages) return;
  if (method.needs.messages)
    base::fail_input("sync.island.kind = {}: does not work with {}, whose islands exchange messages of their own: use {} (--sync)", kind,
                     chosen, fmt::join(sync::message_rule_names(), " or "));
  base::fail_input("sync.island.kind = {}: does not work with {}: the rule carries messages of a method that makes some: use {} (--sync)",
                   kind, chosen, fmt::join(sync::parameter_rule_names(), " or "));
}

}  // namespace

void check_step_method(const Settings& settings, const parallel::Plan& plan) {
  const StepMethod& method = step_method(settings);
  const std::string by = chosen_by(method, settings);
  const std::string chosen = !by.empty()                     ? by
                             : method.needs.chosen_by_data() ? fmt::format("data.kind = {}", settings.data.kind)
                                                             : fmt::format("train.method = {}", method.name);
  for (const StepMethod& one : step_methods())
    if (const std::string other = chosen_by(one, settings); !other.empty() && one.name != method.name)
      base::fail_input("{}: has steps of its own, and {} has others. Leave one of the two out.", other, chosen);
  refuse_limits(chosen, method.needs.limits, used_features(settings, plan));
  static constexpr Limit kOwnBatches[] = {{Feature::step_plans, "the method makes passes of its own: use context.plan = fixed"}};
  if (!method.needs.step_plans) refuse_limits(chosen, kOwnBatches, used_features(settings, plan));
  static constexpr std::string_view kInMemory = "the method reads and writes state in memory: leave it out";
  static constexpr Limit kOwnState[] = {
      {Feature::swapped_parameters, kInMemory}, {Feature::swapped_gradients, kInMemory}, {Feature::swapped_optimizer, kInMemory}};
  if (!method.needs.swaps) refuse_limits(chosen, kOwnState, used_features(settings, plan));
  static constexpr Limit kOwnLosses[] = {
      {Feature::sample_losses, "the method keeps no losses of single samples: use data.sampler = rs2 or shuffled"}};
  if (!method.needs.sample_losses) refuse_limits(chosen, kOwnLosses, used_features(settings, plan));
  check_island_rule(method, chosen, settings, plan);
  for (const StepMethod& one : step_methods())
    if (one.check) one.check(settings, plan);
}

}  // namespace cairn::train
