#include "study/hdee_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/check.h"
#include "model/model.h"
#include "model/objective.h"

namespace cairn::study {
namespace {

constexpr double kFlopsPerWeight = 6;    // a token, forward and backward
constexpr int64_t kBytesPerWeight = 16;  // fp32: value, gradient, two moments
constexpr int64_t kMlpStep = 8;          // widths that are solved for are multiples of it, where that is close enough

// The steps on a domain. Adds a note if the domain is too small for the requested steps.
int64_t steps_on(const std::string& domain, int64_t asked, const HdeeRecipe& recipe, const StudyData& data, std::set<std::string>& notes) {
  const double most = recipe.study.epochs_max * static_cast<double>(data.tokens.at(domain)) / static_cast<double>(data.batch * data.length);
  const auto fits = std::max<int64_t>(1, static_cast<int64_t>(most));
  if (asked <= fits) return asked;
  notes.insert(fmt::format("domain {}: {} tokens are read {:g} times in {} steps: no more are taken", domain, data.tokens.at(domain),
                           recipe.study.epochs_max, fits));
  return fits;
}

PlannedExpert expert_of(const HdeeRecipe& recipe, const StudyData& data, const std::string& line, const std::string& mode,
                        std::set<std::string>& notes) {
  const LineOptions& options = recipe.lines.at(line);
  PlannedExpert expert{.line = line,
                       .size = mode == "sizes" || mode == "both" ? options.size : recipe.study.uniform_size,
                       .steps_asked = mode == "steps" || mode == "both" ? options.steps : recipe.study.uniform_steps,
                       .domains = options.domains};
  expert.facts = facts_of(recipe.sizes.at(expert.size), data.vocab, data.length, data.micro_batch);
  for (const std::string& domain : expert.domains) {
    expert.steps.push_back(steps_on(domain, expert.steps_asked, recipe, data, notes));
    expert.tokens += expert.steps.back() * data.batch * data.length;
  }
  expert.flops = kFlopsPerWeight * static_cast<double>(expert.facts.matmul_parameters) * static_cast<double>(expert.tokens);
  return expert;
}

ModePlan mode_of(const HdeeRecipe& recipe, const StudyData& data, const std::string& mode, std::set<std::string>& notes) {
  ModePlan plan{.mode = mode};
  for (const auto& [line, _] : recipe.lines) {
    plan.experts.push_back(expert_of(recipe, data, line, mode, notes));
    plan.flops += plan.experts.back().flops;
  }
  return plan;
}

double flops_of(const HdeeRecipe& recipe, const StudyData& data, const std::string& mode) {
  std::set<std::string> ignored;
  return mode_of(recipe, data, mode, ignored).flops;
}

// The integer in [1, most] whose cost is closest to the budget; `cost` is increasing.
int64_t closest(int64_t most, double budget, const std::function<double(int64_t)>& cost) {
  int64_t low = 1, high = most;
  while (low < high) {  // the smallest at which it is reached
    const int64_t middle = low + (high - low) / 2;
    cost(middle) >= budget ? high = middle : low = middle + 1;
  }
  return low > 1 && std::abs(cost(low - 1) - budget) <= std::abs(cost(low) - budget) ? low - 1 : low;
}

// Solves for what budget.solve names, sets it in the recipe, and returns a note.
std::string solve(HdeeRecipe& recipe, const StudyData& data, double budget) {
  const std::string& open = recipe.budget.solve;
  const auto line = recipe.lines.find(open);
  const auto size = recipe.sizes.find(open);
  if (line == recipe.lines.end() && size == recipe.sizes.end())
    base::fail_input("study.budget.solve = {}: neither a line nor a size is called so", open);
  const std::vector<std::string> modes = recipe.modes();
  const auto first_of = [&](std::initializer_list<const char*> wanted) -> std::string {
    for (const char* mode : wanted)
      if (std::find(modes.begin(), modes.end(), mode) != modes.end()) return mode;
    base::fail_input("study.budget.solve = {}: no mode that is trained depends on it; add {} to study.compare", open, *wanted.begin());
  };
  if (line != recipe.lines.end()) {
    const std::string mode = first_of({"steps", "both"});
    line->second.steps = closest(1 << 30, budget, [&](int64_t steps) {
      line->second.steps = steps;
      return flops_of(recipe, data, mode);
    });
    return fmt::format("line {}: {} steps, so that mode {} meets the budget", open, line->second.steps, mode);
  }
  if (!size->second.from.empty())
    base::fail_input("study.budget.solve = {}: this size starts from {}, which has its mlp", open, size->second.from);
  if (open == recipe.study.uniform_size) base::fail_input("study.budget.solve = {}: the budget itself is counted with it", open);
  const std::string mode = first_of({"sizes", "both"});
  const auto cost = [&](int64_t mlp) {
    size->second.mlp = mlp;
    return flops_of(recipe, data, mode);
  };
  int64_t mlp = closest(1 << 22, budget, cost);
  const int64_t round = std::max(kMlpStep, (mlp + kMlpStep / 2) / kMlpStep * kMlpStep);
  if (std::abs(cost(round) / budget - 1) <= recipe.budget.tolerance) mlp = round;
  size->second.mlp = mlp;
  return fmt::format("size {}: mlp {}, so that mode {} meets the budget", open, mlp, mode);
}

// The part of the refusal that says what would fit.
std::string advice(HdeeRecipe recipe, const StudyData& data, const ModePlan& plan, double budget) {
  const auto dearest = std::max_element(plan.experts.begin(), plan.experts.end(),
                                        [](const PlannedExpert& a, const PlannedExpert& b) { return a.flops < b.flops; });
  if (plan.mode == "steps" || plan.mode == "both") {
    recipe.budget.solve = dearest->line;
    solve(recipe, data, budget);
    return fmt::format("{} steps for line {} would fit, or set study.budget.solve = \"{}\"", recipe.lines.at(dearest->line).steps,
                       dearest->line, dearest->line);
  }
  if (dearest->size == recipe.study.uniform_size || !recipe.sizes.at(dearest->size).from.empty())
    return "choose sizes whose parameters add up to it";
  recipe.budget.solve = dearest->size;
  solve(recipe, data, budget);
  return fmt::format("mlp = {} for size {} would fit, or set study.budget.solve = \"{}\"", recipe.sizes.at(dearest->size).mlp,
                     dearest->size, dearest->size);
}

}  // namespace

std::string PlannedExpert::id() const { return fmt::format("{}-{}-{}", line, size, steps_asked); }

SizeFacts facts_of(const model::ModelOptions& size, int64_t vocab, int64_t length, int64_t micro_batch) {
  model::ModelOptions fresh = size;
  fresh.from.clear();
  const model::BuiltModel task = model::build_model(fresh, {.vocab = vocab, .length = length, .end_of_text = vocab - 1});
  SizeFacts facts;
  for (const model::Parameter& parameter : task.model->parameters()) {
    facts.parameters += parameter.elements();
    const bool looked_up = parameter.role == model::Parameter::Role::embedding && parameter.uses == 1;
    facts.matmul_parameters += looked_up ? 0 : parameter.elements();
  }
  double saved = 0;
  for (const auto& block : task.model->blocks())
    for (const model::BlockOp& operation : block->card().operations) saved += operation.saved_elements_per_token;
  facts.bytes = kBytesPerWeight * facts.parameters + static_cast<int64_t>(4 * saved * static_cast<double>(micro_batch * length));
  return facts;
}

const ModePlan& HdeePlan::mode(const std::string& name) const {
  for (const ModePlan& plan : modes)
    if (plan.mode == name) return plan;
  CAIRN_CHECK(false, "mode {} is not planned", name);
}

HdeePlan plan_hdee(HdeeRecipe& recipe, const StudyData& data) {
  std::set<std::string> notes;
  HdeePlan plan;
  plan.budget = recipe.budget.flops > 0 ? recipe.budget.flops : flops_of(recipe, data, "uniform");
  if (!recipe.budget.solve.empty()) plan.notes.push_back(solve(recipe, data, plan.budget));
  const std::vector<std::string> trained = recipe.modes();
  std::vector<std::string> modes{"uniform"};
  for (const std::string& mode : trained)
    if (mode != "uniform") modes.push_back(mode);
  for (const std::string& mode : modes) {
    plan.modes.push_back(mode_of(recipe, data, mode, notes));
    ModePlan& one = plan.modes.back();
    one.share = one.flops / plan.budget;
    if (std::find(trained.begin(), trained.end(), mode) != trained.end() && std::abs(one.share - 1) > recipe.budget.tolerance)
      base::fail_input("mode {}: its experts take {:.4g} FLOPs, {:.2f} % {} than the budget of {:.4g} (tolerance {:g} %): {}", mode,
                       one.flops, 100 * std::abs(one.share - 1), one.share > 1 ? "more" : "less", plan.budget,
                       100 * recipe.budget.tolerance, advice(recipe, data, one, plan.budget));
  }
  plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
  return plan;
}

void assign_by_difficulty(HdeeRecipe& recipe, const std::map<std::string, double>& difficulty, const StudyData& data) {
  std::vector<std::string> lines;
  std::vector<std::pair<std::string, int64_t>> sizes;
  std::vector<int64_t> steps;
  for (const auto& [name, line] : recipe.lines) {
    lines.push_back(name);
    sizes.emplace_back(line.size, facts_of(recipe.sizes.at(line.size), data.vocab, data.length, 1).matmul_parameters);
    steps.push_back(line.steps);
  }
  std::stable_sort(lines.begin(), lines.end(), [&](const auto& a, const auto& b) { return difficulty.at(a) < difficulty.at(b); });
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::sort(steps.begin(), steps.end());
  for (size_t i = 0; i < lines.size(); ++i) {
    recipe.lines.at(lines[i]).size = sizes[i].first;
    recipe.lines.at(lines[i]).steps = steps[i];
  }
}

}  // namespace cairn::study
