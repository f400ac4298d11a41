#include "study/trained_weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/group.h"
#include "data/selection/framed_file.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/trainable.h"
#include "train/job.h"
#include "train/state/full_state.h"

namespace cairn::study {
namespace {

constexpr std::string_view kWeightsMagic = "cairnwt1";

}  // namespace

mesh::NamedTensors take_trained(train::Job& job) {
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  mesh::NamedTensors all;
  for (const train::StateTensor& one : train::parameter_state(job)) {
    if (!trained[one.parameter]) continue;
    const auto there = mesh::hold(job.engine.store->swapper(), one.mine, mesh::TensorSwapper::Access::read);
    at::Tensor whole;
    if (job.assembly->trivial()) {
      whole = one.mine.to(at::kCPU, at::kFloat).clone();
    } else {
      whole = job.assembly->gather(one.parameter, one.mine, one.name);
      if (!whole.defined()) whole = at::empty(one.shape, at::kFloat);
      whole = whole.contiguous();
      job.engine.step_group->broadcast(whole, 0, {comm::Purpose::state, one.name}).wait();
    }
    all.push_back({one.name, whole.view(one.shape)});
  }
  return all;
}

void put_trained(train::Job& job, const mesh::NamedTensors& weights) {
  const auto& parameters = job.engine.model->parameters();
  for (const mesh::NamedTensor& one : weights) {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == one.name; });
    CAIRN_CHECK(found != parameters.end() && found->shape == one.tensor.sizes().vec(), "{} is no parameter of this model", one.name);
    job.engine.store->load(static_cast<size_t>(found - parameters.begin()), one.tensor);
  }
  job.engine.store->updated();
}

void write_weights(const std::string& path, const mesh::NamedTensors& weights) {
  base::OrderedJson list = base::OrderedJson::array();
  std::string body;
  for (const mesh::NamedTensor& one : weights) {
    const at::Tensor whole = one.tensor.contiguous();
    list.push_back({{"name", one.name}, {"shape", whole.sizes().vec()}});
    body.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  }
  data::write_framed(path, kWeightsMagic, {{"tensors", list}}, std::as_bytes(std::span(body)));
}

mesh::NamedTensors read_weights(const std::string& path) {
  data::FramedFile file;
  try {
    file = data::read_framed(path, kWeightsMagic, "weights of a study");
  } catch (const Error& error) {
    const std::string why = error.sentence().substr(0, error.sentence().find(" Make it again"));
    base::fail_input("{} Give another --out, or remove the study's directory.", why);
  }
  mesh::NamedTensors weights;
  size_t at = 0;
  const auto list = file.header.find("tensors");
  if (list == file.header.end() || !list->is_array()) base::fail_corrupt(path, "it lists no tensors");
  for (const base::Json& one : *list) {
    if (!one.is_object() || !one.contains("name") || !one.contains("shape") || !one["name"].is_string() || !one["shape"].is_array())
      base::fail_corrupt(path, "a tensor has no name or shape");
    std::vector<int64_t> shape;
    int64_t elements = 1;
    for (const base::Json& size : one["shape"]) {
      if (!size.is_number_integer() || size.get<int64_t>() < 0 || (elements *= size.get<int64_t>()) > (int64_t{1} << 40))
        base::fail_corrupt(path, "a tensor's shape cannot be");
      shape.push_back(size.get<int64_t>());
    }
    const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
    if (at + bytes > file.body.size()) base::fail_corrupt(path, "it ends early");
    at::Tensor tensor = at::empty(shape, at::kFloat);
    std::memcpy(tensor.data_ptr<float>(), file.body.data() + at, bytes);
    weights.push_back({one["name"].get<std::string>(), tensor});
    at += bytes;
  }
  return weights;
}

}  // namespace cairn::study
