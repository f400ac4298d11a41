#include "model/trainable.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/check.h"
#include "model/model.h"
#include "model/name_pattern.h"
#include "model/named_parameters.h"

namespace cairn::model {
namespace {

struct RoleWord {
  const char* word;
  Parameter::Role role;
};
constexpr RoleWord kRoles[] = {{"embedding", Parameter::Role::embedding}, {"weight", Parameter::Role::weight},
                               {"norm", Parameter::Role::norm},           {"bias", Parameter::Role::bias},
                               {"head", Parameter::Role::head},           {"adapter", Parameter::Role::adapter}};

bool fits(const std::string& pattern, const Parameter& parameter) {
  if (!pattern.starts_with("role:")) return matches(pattern, parameter.name);
  return std::any_of(std::begin(kRoles), std::end(kRoles),
                     [&](const RoleWord& one) { return one.role == parameter.role && pattern.substr(5) == one.word; });
}

}  // namespace

namespace {

// Of models of pictures the head is trained beside adapters: every task has classes of its own.
bool is_head_of_pictures(const Model& model, const Parameter& parameter) {
  if (model.positions() == 0) return false;
  const auto module_of = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
  return std::ranges::any_of(model.parameters(), [&](const Parameter& one) {
    return one.role == Parameter::Role::head && module_of(one.name) == module_of(parameter.name);
  });
}

}  // namespace

std::vector<bool> trainable(const Model& model, const std::vector<std::string>& patterns) {
  const auto& parameters = model.parameters();
  const bool adapted =
      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.role == Parameter::Role::adapter; });
  std::vector<bool> chosen;
  for (const Parameter& p : parameters)
    chosen.push_back(p.is_trainable &&
                     (patterns.empty()
                          ? !adapted || p.role == Parameter::Role::adapter || is_head_of_pictures(model, p)
                          : std::any_of(patterns.begin(), patterns.end(), [&](const std::string& one) { return fits(one, p); })));
  for (const std::string& pattern : patterns)
    if (std::none_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return fits(pattern, p); }))
      base::fail_input(
          "model.train: \"{}\" fits no parameter: write a name such as \"{}\" with * for anything, or role:embedding, weight, norm, bias, "
          "head "
          "or adapter",
          pattern, parameters.front().name);
  return chosen;
}

std::vector<bool> with_neighbours(const Model& model, std::vector<bool> chosen) {
  for (const auto& block : model.blocks())
    for (const mesh::ParamId& id : named_parameters(block->card())) {
      bool any = false;
      for (int32_t i = id.first; i < id.first + id.count; ++i) any = any || chosen[static_cast<size_t>(i)];
      for (int32_t i = id.first; i < id.first + id.count; ++i)
        if (any) chosen[static_cast<size_t>(i)] = true;
    }
  return chosen;
}

}  // namespace cairn::model
