// State as full tensors by name. Snapshots store full tensors, so a snapshot of one layout loads into any other layout.
//
//   save   gather_whole: the ranks' slices -> a full tensor on the first rank of the step group (parallel::FullTensorGather)
//   load   full tensor -> cut_out(local_shard): this rank's tensor-parallel shard -> narrow(elements): its ZeRO slice -> `mine`
//
// Gathering is collective, so all ranks must list the same tensors in the same order, also those that they keep no slice of. A sharded
// rank's optimizer has state for its own slices only. The list of optimizer tensors therefore comes from an optimizer over full parameters
// on the meta device (state_over_whole), and `mine` from the rank's own optimizer, by name.
#include "train/state/full_state.h"

#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/trainable.h"
#include "optim/active_optimizer.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/parameter_piece.h"

namespace cairn::train {
namespace {

// The state of an optimizer over full parameters, without values; over parameters that are larger by `more` in every dim.
mesh::NamedTensors state_over_whole(const Job& job, int64_t more = 0) {
  std::vector<optim::ParameterPiece> pieces;
  std::set<std::string> optimized;  // none where the method has no gradients
  for (const sync::FullParameter& one : job.engine.trained.full) optimized.insert(one.name);
  for (const model::Parameter& parameter : job.engine.model->parameters()) {
    if (!optimized.contains(parameter.name)) continue;
    std::vector<int64_t> shape = parameter.shape;
    for (int64_t& size : shape) size += more;
    const at::Tensor nowhere = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
    pieces.push_back(make_piece(parameter, nowhere, nowhere));
  }
  std::vector<std::pair<std::string, std::vector<int64_t>>> tracked;
  for (const optim::ParameterPiece& one : pieces) {
    if (!job.engine.active) break;  // a task's optimizer
    const optim::ActiveSet& set = job.engine.active->set();
    if (set.members()[set.index(one.name)].by_element) tracked.emplace_back("missed." + one.name, one.parameter.sizes().vec());
  }
  mesh::NamedTensors state = optim::make_optimizer(job.config.settings.optim, std::move(pieces))->state();
  for (const auto& [name, shape] : tracked)  // of the active optimizer
    state.push_back({name, at::empty(shape, at::TensorOptions().dtype(at::kInt).device(at::kMeta))});
  return state;
}

// By name: whether a state tensor has a number for each element of its parameter. Sizes of 1 would hide it: the row means of a matrix with
// one column have the matrix's shape. So the sizes of larger parameters decide.
std::map<std::string, bool> state_by_element(const Job& job) {
  std::map<std::string, int64_t> elements;
  for (const model::Parameter& parameter : job.engine.model->parameters()) {
    int64_t& n = elements[parameter.name] = 1;
    for (const int64_t size : parameter.shape) n *= size + 1;
  }
  std::map<std::string, bool> found;
  for (const mesh::NamedTensor& one : state_over_whole(job, 1))
    found[one.name] = one.tensor.numel() == elements.at(one.name.substr(one.name.find('.') + 1));
  return found;
}

// The parameter of a state tensor: "exp_avg.model.norm.weight" belongs to "model.norm.weight".
std::string parameter_of(const std::string& name) { return name.substr(name.find('.') + 1); }

}  // namespace

std::vector<StateTensor> parameter_state(const Job& job) {
  std::vector<StateTensor> all;
  const at::ScalarType dtype = job.config.settings.train.parameters == Precision::bf16 ? at::kBFloat16 : at::kFloat;
  for (size_t i = 0; i < job.engine.model->parameters().size(); ++i) {
    const model::Parameter& parameter = job.engine.model->parameters()[i];
    all.push_back({.name = parameter.name, .shape = parameter.shape, .parameter = i, .dtype = dtype});
  }
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) {
    all[piece.parameter].mine = piece.value;
    all[piece.parameter].elements = piece.elements;
  }
  return all;
}

std::vector<StateTensor> optimizer_state(Job& job) {
  const mesh::NamedTensors own = job.engine.optimizer->state();
  std::vector<StateTensor> all;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < job.engine.model->parameters().size(); ++i) places[job.engine.model->parameters()[i].name] = i;
  const bool trivial = job.assembly->trivial();  // then nothing is gathered
  const std::map<std::string, bool> by_element = state_by_element(job);
  std::map<size_t, mesh::Interval> elements;
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) elements[piece.parameter] = piece.elements;
  for (const mesh::NamedTensor& one : trivial ? own : state_over_whole(job)) {
    const auto found = places.find(parameter_of(one.name));
    CAIRN_CHECK(found != places.end(), "the optimizer keeps {}, which belongs to no parameter", one.name);
    all.push_back({.name = one.name,
                   .shape = one.tensor.sizes().vec(),
                   .parameter = found->second,
                   .by_element = by_element.at(one.name),
                   .dtype = one.tensor.scalar_type()});
  }
  std::map<std::string, at::Tensor> mine;
  for (const mesh::NamedTensor& one : own) mine[one.name] = one.tensor;
  for (StateTensor& one : all) {
    const auto found = mine.find(one.name);
    if (found == mine.end()) continue;
    one.mine = found->second;
    one.elements = elements.at(one.parameter);
  }
  return all;
}

std::vector<StateTensor> model_state(Job& job) {
  std::vector<StateTensor> all = parameter_state(job);
  const std::vector<at::Tensor> global = job.engine.sync->global_parameters();
  if (global.empty()) return all;
  size_t next = 0;  // the global parameters are the trained ones, in the same order
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces())
    if (piece.gradient.defined()) all[piece.parameter].mine = global[next++].view(piece.value.sizes());
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  for (StateTensor& one : all)
    if (trained[one.parameter]) one.dtype = at::kFloat;  // rules keep them in fp32
  return all;
}

std::vector<StateTensor> live_state(Job& job) {
  if (job.engine.sync->global_parameters().empty()) return {};
  std::vector<StateTensor> all = parameter_state(job);
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  std::erase_if(all, [&](const StateTensor& one) { return !trained[one.parameter]; });
  return all;
}

std::vector<StateTensor> sync_state(Job& job, int64_t step) {
  std::vector<StateTensor> parameters = parameter_state(job), all;
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  std::erase_if(parameters, [&](const StateTensor& one) { return !trained[one.parameter]; });
  std::map<std::string, size_t> views;
  for (size_t i = 0; i < job.engine.trained.values.size(); ++i) views[job.engine.trained.values[i].name] = i;
  for (const sync::ElementState& state : job.engine.sync->elements(step)) {
    CAIRN_CHECK(state.of.size() == parameters.size(), "{}: {} answers for {} parameters", state.name, state.of.size(), parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!state.of[i]) continue;
      StateTensor& one = all.emplace_back(parameters[i]);
      const auto view = views.find(one.name);
      one.name = state.name + "." + one.name;
      one.mine = view == views.end() ? at::Tensor() : state.mine.at(view->second);
      one.dtype = at::kFloat;
    }
  }
  return all;
}

mesh::NamedTensors gather_whole(const Job& job, const std::vector<StateTensor>& state) {
  mesh::NamedTensors whole;
  mesh::TensorSwapper* const swapper = job.engine.store->swapper();
  for (const StateTensor& one : state) {
    const auto there = mesh::hold(swapper, one.mine, mesh::TensorSwapper::Access::read);
    at::Tensor tensor = swapper && swapper->owns(one.mine) && job.assembly->trivial() ? one.mine.clone() : one.mine;
    if (!job.assembly->trivial())
      tensor = one.by_element ? job.assembly->gather(one.parameter, one.mine, one.name, one.dtype)
                              : job.assembly->gather_whole(one.parameter, one.mine, one.shape, one.name, one.dtype);
    if (tensor.defined()) whole.push_back({one.name, one.by_element ? tensor.view(one.shape) : tensor});
  }
  return whole;
}

void load(const Job& job, const snapshot::OpenSnapshot& from, const std::string& section, const std::vector<StateTensor>& into) {
  std::vector<snapshot::TensorRequest> wanted;
  for (const StateTensor& one : into) {
    snapshot::TensorRequest& want = wanted.emplace_back();
    want.name = one.name;
    want.shape = one.shape;
    want.dtype = one.mine.defined() ? one.mine.scalar_type() : one.dtype;
    if (!one.mine.defined()) continue;
    const parallel::ParameterShard& share = job.engine.store->shard().parameters[one.parameter];
    want.take = [&one, &share, swapper = job.engine.store->swapper()](const at::Tensor& whole) {
      const auto there = mesh::hold(swapper, one.mine, mesh::TensorSwapper::Access::update);
      if (!one.by_element || one.mine.numel() == whole.numel()) {
        one.mine.copy_(whole.view(one.mine.sizes()));
        return;
      }
      const at::Tensor local = parallel::cut_out(whole, share.local_shard).reshape({-1});
      one.mine.view({-1}).copy_(local.narrow(0, one.elements.begin, one.elements.length()));
    };
  }
  from.load(section, wanted);
}

}  // namespace cairn::train
