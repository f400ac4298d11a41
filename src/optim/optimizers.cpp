// The list of update rules. A new one is a file beside this and one line here.
#include "base/check.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"
#include "kernels/stochastic_rounding.h"
#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "optim/options.h"
#include "optim/sgd.h"

namespace cairn::optim {
namespace {

struct Rule {
  std::string name;
  std::unique_ptr<Optimizer> (*make)(const OptimOptions&, std::vector<ParameterPiece>);
  bool updates_bf16 = false;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> list{
      {"adamw", make_adamw, true}, {"sgd", make_sgd}, {"muon", make_muon, true}, {"adafactor", make_adafactor}};
  return list;
}

}  // namespace

void Optimizer::update_several(int64_t first, int64_t count, const UpdateFacts& facts) {
  for (int64_t piece = first; piece < first + count; ++piece) update(piece, facts);
}

std::optional<base::Random> rounding_of(const ParameterPiece& piece, const UpdateFacts& facts) {
  if (facts.rounding == nullptr) return std::nullopt;
  return facts.rounding->for_name(piece.name).for_index(static_cast<uint64_t>(facts.step));
}

void round_into(const at::Tensor& parameter, const at::Tensor& wide, const std::optional<base::Random>& rounding) {
  if (rounding)
    kernels::round_stochastically(parameter, wide, *rounding, 0);
  else
    parameter.copy_(wide);
}

at::Tensor scaled_gradient(const at::Tensor& gradient, const UpdateFacts& facts) {
  const at::Tensor wide = gradient.to(at::kFloat);
  if (facts.gradient_factor == nullptr) return wide * facts.gradient_scale;
  return wide * facts.gradient_factor->reshape({}).mul(facts.gradient_scale);
}

bool updates_bf16(const OptimOptions& options) {
  for (const Rule& rule : rules())
    if (rule.name == options.kind) return rule.updates_bf16;
  return false;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Rule& rule : rules()) names.push_back(rule.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces) {
  if (options.moments != "fp32" && options.kind != "adamw")
    base::fail_input("optim.moments = {}: is for optim.kind = adamw; {} keeps what it keeps in fp32: leave it out", options.moments,
                     options.kind);
  for (const Rule& rule : rules())
    if (rule.name == options.kind) return rule.make(options, std::move(pieces));
  base::fail_unknown("optimizer", options.kind, optimizer_names());
}

}  // namespace cairn::optim
