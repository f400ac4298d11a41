#include "model/experts/balance.h"

#include "kernels/aten.h"
#include "model/families/expert_names.h"
#include "model/model.h"

namespace cairn::model {
namespace {

constexpr std::string_view kExpertCounts = ".expert_counts", kExpertLoad = ".expert_load";

std::string buffer_of(std::string_view name, std::string_view ending) { return std::string(name).append(ending); }

}  // namespace

void add_expert_buffers(Buffers& buffers, const std::string& name, int64_t experts, const at::TensorOptions& options) {
  for (const std::string_view ending : {kExpertCounts, kExpertLoad})
    buffers[buffer_of(name, ending)] = at::zeros({experts}, options.dtype(at::kLong));
}

void count_choices(std::string_view name, const at::Tensor& ids, const at::Tensor& sequence, int64_t experts, const Call& call) {
  const auto found = call.buffers.find(buffer_of(name, kExpertCounts));
  if (found == call.buffers.end()) return;
  const at::Tensor has_target = sequence.ge(0).to(at::kLong).unsqueeze(1).expand(ids.sizes()).reshape({-1});
  // Not in place: others may have the old value.
  found->second = found->second + at::zeros({experts}, ids.options()).scatter_add_(0, ids.reshape({-1}), has_target);
}

double commit_expert_counts(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum) {
  std::vector<std::string> names;
  std::vector<at::Tensor> counts;
  for (auto& [key, tensor] : buffers) {
    if (!key.ends_with(kExpertCounts)) continue;
    names.push_back(key.substr(0, key.size() - kExpertCounts.size()));
    counts.push_back(skipped ? at::zeros_like(tensor) : tensor);
    tensor = at::zeros_like(tensor);
  }
  if (names.empty()) return 0;
  const at::Tensor all = at::stack(counts);  // one message
  if (!skipped) sum(all);
  for (size_t i = 0; i < names.size(); ++i) buffers.at(buffer_of(names[i], kExpertLoad)).copy_(all[static_cast<int64_t>(i)]);
  if (skipped) return 0;
  const at::Tensor load = all.to(at::kDouble);
  return std::get<0>(load.max(1)).div(load.mean(1).clamp_min(1e-9)).max().item<double>();
}

std::vector<ExpertBias> expert_biases(const Model& model) {
  std::vector<ExpertBias> found;
  for (const std::unique_ptr<Block>& block : model.blocks())
    for (const BlockOp& operation : block->card().operations)
      for (const mesh::ParamId& id : operation.parameters)
        if (const auto at = static_cast<size_t>(id.first); model.parameters()[at].name.ends_with(kExpertBiasEnding))
          found.push_back({at, buffer_of(block->card().name, kExpertLoad)});
  return found;
}

at::Tensor moved_biases(const at::Tensor& biases, const at::Tensor& load, double rate) {
  const at::Tensor counts = load.to(at::kDouble);
  return biases + ((counts.mean() - counts).sign() * rate).to(biases.options());
}

}  // namespace cairn::model
