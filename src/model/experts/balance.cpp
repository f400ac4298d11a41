#include "model/experts/balance.h"

#include <algorithm>
#include <vector>

#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr std::string_view kExpertCounts = ".expert_counts", kExpertBias = ".expert_bias";

}  // namespace

void add_expert_buffers(Buffers& buffers, const std::string& name, int64_t experts, bool biased, const at::TensorOptions& options) {
  buffers[name + std::string(kExpertCounts)] = at::zeros({experts}, options.dtype(at::kLong));
  if (biased) buffers[name + std::string(kExpertBias)] = at::zeros({experts}, options.dtype(at::kFloat));
}

at::Tensor expert_bias(std::string_view name, const Call& call) {
  const auto found = call.buffers.find(std::string(name) + std::string(kExpertBias));
  return found == call.buffers.end() ? at::Tensor() : found->second;
}

void count_choices(std::string_view name, const at::Tensor& ids, const at::Tensor& sequence, int64_t experts, const Call& call) {
  const auto found = call.buffers.find(std::string(name) + std::string(kExpertCounts));
  if (found == call.buffers.end()) return;
  const at::Tensor counted = sequence.ge(0).to(at::kLong).unsqueeze(1).expand(ids.sizes()).reshape({-1});
  // Not in place: others may have the old value.
  found->second = found->second + at::zeros({experts}, ids.options()).scatter_add_(0, ids.reshape({-1}), counted);
}

double commit_expert_counts(Buffers& buffers, bool skipped, double rate, const std::function<void(const at::Tensor&)>& sum) {
  std::vector<std::string> names;
  std::vector<at::Tensor> counts;
  for (auto& [key, tensor] : buffers) {
    if (!key.ends_with(kExpertCounts)) continue;
    names.push_back(key.substr(0, key.size() - kExpertCounts.size()));
    counts.push_back(tensor);
    tensor = at::zeros_like(tensor);
  }
  if (names.empty() || skipped) return 0;
  const at::Tensor all = at::stack(counts);  // one message
  sum(all);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto bias = buffers.find(names[i] + std::string(kExpertBias));
    if (bias == buffers.end()) continue;
    const at::Tensor load = all[static_cast<int64_t>(i)].to(at::kDouble);
    bias->second.add_((load.mean() - load).sign().to(at::kFloat), rate);
  }
  const at::Tensor mean = all.to(at::kDouble).mean(1);
  return std::get<0>(all.to(at::kDouble).max(1)).div(mean.clamp_min(1e-9)).max().item<double>();
}

}  // namespace cairn::model
