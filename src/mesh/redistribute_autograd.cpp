#include "mesh/redistribute_autograd.h"

#include <string>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "comm/world.h"
#include "mesh/redistribute.h"

namespace cairn::mesh {
namespace {

// What backward needs; the graph keeps it.
struct SavedPlan : torch::CustomClassHolder {
  comm::World* world = nullptr;
  std::shared_ptr<const RedistributePlan> plan;
  comm::Purpose purpose = comm::Purpose::gradient;
  std::string what;
};

struct Redistribution : torch::autograd::Function<Redistribution> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& local, const c10::intrusive_ptr<SavedPlan>& way) {
    context->saved_data["way"] = c10::IValue::make_capsule(way);
    const at::Tensor result = redistribute(*way->world, local, *way->plan, {way->purpose, way->what});
    return result.is_alias_of(local) ? result.alias() : result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["way"].toCapsule();
    const auto* way = static_cast<const SavedPlan*>(capsule.get());
    return {redistribute(*way->world, gradients.at(0), backward_of(way->plan->change()), {comm::Purpose::gradient, way->what}), {}};
  }
};

}  // namespace

at::Tensor redistribute_differentiably(comm::World& world, const at::Tensor& local, std::shared_ptr<const RedistributePlan> plan,
                                       comm::Label label) {
  auto way = c10::make_intrusive<SavedPlan>();
  way->world = &world;
  way->plan = std::move(plan);
  way->purpose = label.purpose;
  way->what = label.what;
  return Redistribution::apply(local, way);
}

}  // namespace cairn::mesh
