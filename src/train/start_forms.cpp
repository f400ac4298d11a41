#include "train/start_forms.h"

#include <algorithm>
#include <map>

#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/decoder/weight_form.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "train/job.h"

namespace cairn::train {
namespace {

std::vector<const model::WeightForm*> replacing_forms(const Job& job) {
  std::vector<const model::WeightForm*> forms = model::weight_forms(*job.engine.model);
  std::erase_if(forms, [](const model::WeightForm* one) { return one->stores_dense(); });
  return forms;
}

at::Tensor new_weight(const Job& job, const model::Parameter& dense) {
  const at::Tensor whole = at::empty(dense.shape, at::kFloat);
  model::initialize_parameter(dense, whole.view({-1}), base::Random(static_cast<uint64_t>(job.config.settings.train.seed)));
  return whole;
}

}  // namespace

mesh::NamedTensors dense_weights_of_forms(const Job& job) {
  mesh::NamedTensors all;
  for (const model::WeightForm* form : replacing_forms(job))
    all.push_back({form->dense_parameter().name, at::empty(form->dense_parameter().shape, at::kFloat)});
  return all;
}

void start_forms(Job& job, const mesh::NamedTensors& dense, comm::World& world) {
  const auto given = [&](const std::string& name) {
    const auto found = std::find_if(dense.begin(), dense.end(), [&](const mesh::NamedTensor& one) { return one.name == name; });
    return found == dense.end() ? at::Tensor() : found->tensor;
  };
  int turn = 0;
  for (const model::WeightForm* form : replacing_forms(job)) {
    std::map<int32_t, std::pair<int64_t, int64_t>> places;  // by parameter: where it is in the message
    int64_t elements = 0;
    for (const mesh::ParamId& id : form->parameters())
      for (int32_t i = id.first; i < id.first + id.count; ++i) {
        const int64_t n = job.engine.model->parameters()[static_cast<size_t>(i)].elements();
        places[i] = {elements, n};
        elements += n;
      }
    const at::Tensor message = at::zeros({elements}, at::kFloat);
    const auto whole = [&](int32_t i) {
      const auto [begin, n] = places.at(i);
      return message.narrow(0, begin, n).view(job.engine.model->parameters()[static_cast<size_t>(i)].shape);
    };
    const int owner = turn++ % world.size();
    if (owner == world.rank()) {
      const at::Tensor weight = given(form->dense_parameter().name);
      form->start((weight.defined() ? weight : new_weight(job, form->dense_parameter())).to(job.config.device),
                  [&](mesh::ParamId id) { return whole(id.first); });
    }
    if (world.size() > 1)
      world.everyone().broadcast(message, owner, {comm::Purpose::parameter, form->dense_parameter().name}).wait_host();
    for (const auto& [i, place] : places) job.engine.store->load(static_cast<size_t>(i), whole(i));
  }
}

}  // namespace cairn::train
