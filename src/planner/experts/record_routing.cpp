#include "planner/experts/record_routing.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/experts/moe_block.h"
#include "model/experts/routing_observer.h"

namespace cairn::planner {
namespace {

// The first experts of one sequence, layer by layer.
class FirstExperts final : public model::RoutingObserver {
 public:
  void saw(std::string_view, const at::Tensor&, const at::Tensor&, const at::Tensor& ids) override {
    layers_.push_back(ids.select(1, 0).cpu().contiguous());
  }
  // Appends what was seen since the last call, by token.
  void move_into(RoutingTrace& trace, int64_t tokens) {
    CAIRN_CHECK(static_cast<int>(layers_.size()) == trace.layers, "{} layers routed tokens, and {} have experts", layers_.size(),
                trace.layers);
    for (int64_t token = 0; token < tokens; ++token)
      for (const at::Tensor& layer : layers_) trace.experts.push_back(static_cast<int16_t>(layer.const_data_ptr<int64_t>()[token]));
    layers_.clear();
  }

 private:
  std::vector<at::Tensor> layers_;
};

}  // namespace

ExpertLayers expert_layers(const model::Model& model) {
  ExpertLayers found;
  for (const auto& block : model.blocks())
    if (const model::RoutedBlock* layer = model::routed_block(*block)) {
      found.layers += 1;
      found.experts = static_cast<int>(layer->experts().count);
    }
  if (found.layers == 0) base::fail_input("the model has no experts to place");
  return found;
}

RoutingTrace record_routing(const RoutedModel& routed, std::span<const int64_t> tokens, int64_t length) {
  const at::NoGradGuard no_grad;
  RoutingTrace trace{expert_layers(routed.model).layers, {}};
  FirstExperts first;
  model::PassOptions options;
  options.routing = &first;
  const mesh::Axes alone;
  const model::Call call{.weights = routed.weights, .buffers = routed.buffers, .axes = alone, .needs = {false, false}, .options = options};
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < count; begin += length) {
    const int64_t n = std::min(length, count - begin);
    const at::Tensor ids = at::empty({1, n}, at::kLong);
    std::copy_n(tokens.begin() + begin, n, ids.mutable_data_ptr<int64_t>());
    model::Values values;
    values.put("tokens", ids.to(routed.weights.get({0}).device()));
    for (size_t i = 0; i + 1 < routed.model.blocks().size(); ++i) routed.model.blocks()[i]->forward(values, nullptr, call);
    first.move_into(trace, n);
  }
  return trace;
}

}  // namespace cairn::planner
