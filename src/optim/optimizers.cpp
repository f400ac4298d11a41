// The list of update rules. A new one is a source beside this file, its `make_x` declared below, and one line in the list.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"
#include "kernels/stochastic_rounding.h"
#include "optim/adamw.h"
#include "optim/needs.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {

// Each is defined in the source that has its name.
std::unique_ptr<Optimizer> make_sgd(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory);
std::unique_ptr<Optimizer> make_muon(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory);
std::unique_ptr<Optimizer> make_riemannian_adam(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory);
std::unique_ptr<Optimizer> make_adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory);

namespace {

struct Rule {
  std::string name;  // in optim.kind
  OptimizerNeeds needs;
  std::unique_ptr<Optimizer> (*make)(const OptimOptions&, std::vector<ParameterPiece>, StateMemory*);
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> list{
      {"adamw", {.updates_bf16 = true, .bf16_moments = true}, make_adamw},
      {"sgd", {.adaptive = false}, make_sgd},
      {"muon",
       {.granularity = Granularity::matrices, .split = SplitUpdate::matrices, .updates_bf16 = true, .matrix_steps = true},
       make_muon},
      {"adafactor", {.granularity = Granularity::matrices, .split = SplitUpdate::factors, .matrix_steps = true}, make_adafactor},
      {"riemannian_adam", {.granularity = Granularity::matrices, .on_manifolds = true}, make_riemannian_adam},
  };
  return list;
}

const Rule& rule_called(const std::string& name) {
  const auto found = std::find_if(rules().begin(), rules().end(), [&](const Rule& rule) { return rule.name == name; });
  if (found == rules().end()) base::fail_unknown("optimizer", name, optimizer_names());
  return *found;
}

// "adamw or sgd": the rules whose needs satisfy `holds`.
template <typename Holds>
std::string names_where(const Holds& holds) {
  std::vector<std::string> names;
  for (const Rule& rule : rules())
    if (holds(rule.needs)) names.push_back(rule.name);
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

at::Tensor state_zeros(StateMemory* from, int64_t group, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return from ? from->zeros(group, sizes, options) : at::zeros(sizes, options);
}

void Optimizer::update_several(int64_t first, int64_t count, const UpdateFacts& facts) {
  for (int64_t piece = first; piece < first + count; ++piece) update(piece, facts);
}

std::optional<base::Random> rounding_of(const ParameterPiece& piece, const UpdateFacts& facts) {
  if (facts.rounding == nullptr) return std::nullopt;
  const base::Random random = facts.rounding->for_name(piece.name).for_index(static_cast<uint64_t>(facts.step));
  return piece.shard == 0 ? random : random.for_index(static_cast<uint64_t>(piece.shard));
}

void round_into(const ParameterPiece& piece, const at::Tensor& wide, const UpdateFacts& facts) {
  if (const auto rounding = rounding_of(piece, facts))
    kernels::round_stochastically(piece.parameter, wide, *rounding, piece.first_index);
  else
    piece.parameter.copy_(wide);
}

at::Tensor scaled_gradient(const at::Tensor& gradient, const UpdateFacts& facts) {
  const at::Tensor wide = gradient.to(at::kFloat);
  if (facts.gradient_factor == nullptr) return wide * facts.gradient_scale;
  return wide * facts.gradient_factor->reshape({}).mul(facts.gradient_scale);
}

const OptimizerNeeds& optimizer_needs(const std::string& kind) { return rule_called(kind).needs; }

std::string elementwise_optimizers() {
  return names_where([](const OptimizerNeeds& needs) { return needs.elementwise(); });
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Rule& rule : rules()) names.push_back(rule.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  const Rule& rule = rule_called(options.kind);
  if (options.moments != StateDtype::fp32 && !rule.needs.bf16_moments)
    base::fail_input("optim.moments = {}: optim.kind = {} keeps its state in fp32. Leave optim.moments out, or use optim.kind = {}.",
                     base::enum_name(kStateDtypeNames, options.moments), options.kind,
                     names_where([](const OptimizerNeeds& needs) { return needs.bf16_moments; }));
  return rule.make(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
