#include "parallel/pass.h"

#include <map>
#include <optional>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "base/memory_tags.h"
#include "base/trace.h"
#include "kernels/aten.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

// For each block, the values that nobody reads after it.
std::vector<std::vector<std::string>> last_reads(const model::Model& model) {
  std::map<std::string, size_t> last;
  for (size_t i = 0; i < model.blocks().size(); ++i)
    for (const std::string& name : model.blocks()[i]->card().reads) last[name] = i;
  std::vector<std::vector<std::string>> result(model.blocks().size());
  for (const auto& [name, index] : last) result[index].push_back(name);
  return result;
}

std::optional<base::Trace::Span> span(const Pass& pass, std::string_view name, std::string_view category) {
  if (!pass.trace) return std::nullopt;
  return pass.trace->span(name, category);
}

}  // namespace

model::Losses execute(const Pass& pass) {
  at::NoGradGuard no_grad;  // gradients are driven block by block; a block that wants autograd turns it on inside
  const auto& blocks = pass.model.blocks();
  const model::Call call{.weights = pass.at,
                         .buffers = pass.buffers,
                         .axes = pass.axes,
                         .random = pass.random,
                         .needs = {.input = pass.into != nullptr, .weights = pass.into != nullptr},
                         .slice = {}};
  model::Values values;
  for (const auto& [name, field] : pass.batch.fields) values.put(name, field.tensor);
  std::vector<model::Saved> saved(pass.into ? blocks.size() : 0);
  std::vector<base::BookedMemory> booked;  // one for each of `saved`

  const auto dead = last_reads(pass.model);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto traced = span(pass, blocks[i]->card().name, "forward");
    blocks[i]->forward(values, pass.into ? &saved[i] : nullptr, call);
    if (pass.into && pass.memory) booked.emplace_back(*pass.memory, base::MemoryUse::activations, saved[i].bytes());
    for (const std::string& name : dead[i]) values.drop(name);
  }

  model::Values gradients;
  model::Losses losses;
  {
    const auto traced = span(pass, "objective", "objective");
    losses = pass.objective.evaluate(values, pass.batch, pass.into ? &gradients : nullptr, pass.weight);
  }
  values = {};
  if (!pass.into) return losses;

  for (size_t i = blocks.size(); i-- > 0;) {
    const auto traced = span(pass, blocks[i]->card().name, "backward");
    blocks[i]->backward_input(gradients, saved[i], call);
    blocks[i]->backward_weight(std::move(saved[i]), *pass.into, call);
    saved.pop_back();
    if (!booked.empty()) booked.pop_back();
  }
  return losses;
}

}  // namespace cairn::parallel
