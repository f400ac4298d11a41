// State by element comes in families: the values, the parameters that islands have in common, each moment of the optimizer, what each sync
// rule keeps. A rearrangement is applied to the tensors of one family after the other:
//
//   shards -> assemble: one broadcast for each distinct part, among the ranks that hold any -> rearranged -> keep: this rank's part
//
// Sources are all read before anything is written, because families borrow from each other: a tensor that is not trained has no common
// parameters of its own, so it takes part there with its values; where it has no moments, it takes part with zeros.
#include "train/state/surgery.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/fragment.h"
#include "mesh/write_barrier.h"
#include "optim/active_optimizer.h"
#include "parallel/layout/model_shard.h"
#include "sync/needs.h"
#include "train/active_parts.h"
#include "train/job.h"
#include "train/state/full_state.h"

namespace cairn::train {
namespace {

constexpr const char* kMissedCounts = "missed";

struct StateFamily {
  std::string name;
  enum class Absent { is_zero, has_its_value } absent = Absent::is_zero;
  std::map<size_t, StateTensor> tensors = {};  // by parameter
  bool moments = false;                        // zeroed with them
};

}  // namespace

class SurgeryInParts::Operation {
 public:
  explicit Operation(Job& job) : job_(job), updates_(updates_done(job)) {
    for (size_t i = 0; i < job.engine.model->parameters().size(); ++i) places_[job.engine.model->parameters()[i].name] = i;
    for (StateTensor& one : parameter_state(job)) values_.emplace(one.parameter, std::move(one));
    if (!job.engine.sync->global_parameters().empty()) {
      StateFamily& common = families_.emplace_back(StateFamily{"common", StateFamily::Absent::has_its_value});
      for (StateTensor& one : model_state(job))
        if (trained(one.parameter)) common.tensors.emplace(one.parameter, std::move(one));
    }
    add_families("optimizer", optimizer_state(job));
    add_families("sync", sync_state(job, job.progress.steps_done));
  }

  void run(const optim::Rearrangement& change) {
    if (std::all_of(change.tensors.begin(), change.tensors.end(), [&](const std::string& one) { return !places_.contains(one); }))
      return rearrange_buffers(change);
    std::vector<size_t> parameters;
    for (const std::string& name : change.tensors) parameters.push_back(place(name));
    const bool all_trained = std::all_of(parameters.begin(), parameters.end(), [&](size_t p) { return trained(p); });
    if (!all_trained) take_common(parameters);
    if (comm::Group* const holders = group_of(parameters)) {
      std::vector<std::pair<const StateTensor*, at::Tensor>> results;
      const auto rearrange = [&](const std::vector<const StateTensor*>& tensors) {
        std::vector<at::Tensor> whole;
        at::ScalarType dtype = at::kFloat;
        for (const StateTensor* one : tensors)
          if (one) dtype = one->dtype;
        for (size_t i = 0; i < tensors.size(); ++i)
          whole.push_back(tensors[i] ? assemble(*tensors[i], *holders).to(dtype) : zeros(parameters[i], dtype));
        whole = optim::rearranged(change, whole);
        for (size_t i = 0; i < tensors.size(); ++i)
          if (tensors[i]) results.emplace_back(tensors[i], whole[i]);
      };
      std::vector<const StateTensor*> tensors;
      for (const size_t p : parameters) tensors.push_back(&values_.at(p));
      rearrange(tensors);
      for (const StateFamily& family : families_) {
        if (family.moments && !change.keeps_moments) continue;
        tensors.clear();
        bool any = false;
        for (const size_t p : parameters) {
          const auto found = family.tensors.find(p);
          any = any || found != family.tensors.end();
          tensors.push_back(found != family.tensors.end()                    ? &found->second
                            : family.absent == StateFamily::Absent::has_its_value ? &values_.at(p)
                                                                             : nullptr);
        }
        if (any) rearrange(tensors);
      }
      for (const auto& [tensor, whole] : results) keep(*tensor, whole);
    }
    if (change.keeps_moments) return;
    for (const size_t p : parameters)
      if (trained(p)) zero_moments(p);
  }

  void run(const optim::ZeroMoments& change) {
    const size_t parameter = place(change.parameter);
    change.boxes.empty() ? zero_moments(parameter) : zero_moments(parameter, change.boxes);
  }

  void run(const optim::NewValues& change) {
    const size_t parameter = place(change.parameter);
    const StateTensor& value = values_.at(parameter);
    CAIRN_CHECK(change.whole.sizes().vec() == value.shape, "new values of {} have another shape", change.parameter);
    for (const StateFamily& family : families_)
      if (const auto found = family.tensors.find(parameter); family.name == "common" && found != family.tensors.end())
        keep(found->second, change.whole);
    keep(value, change.whole);
  }

  // The whole parameters, as islands have them in common, on the ranks that hold any.
  std::vector<at::Tensor> common(const std::vector<size_t>& parameters) const {
    std::vector<at::Tensor> whole;
    comm::Group* const group = group_of(parameters);
    for (const size_t p : group ? parameters : std::vector<size_t>{}) {
      const StateTensor* one = &values_.at(p);
      for (const StateFamily& family : families_)
        if (const auto found = family.tensors.find(p); family.name == "common" && found != family.tensors.end()) one = &found->second;
      whole.push_back(assemble(*one, *group));
    }
    return whole;
  }

  // The ranks that hold any part of these parameters; null: this rank does not.
  comm::Group* group_of(const std::vector<size_t>& parameters) const {
    std::set<int> places;
    for (const size_t p : parameters)
      for (const parallel::StateMap::Holding& one : job_.state_map->holdings(p)) places.insert(one.rank);
    comm::Group& step_group = *job_.engine.step_group;
    if (!places.contains(step_group.rank())) return nullptr;
    std::vector<int> ranks;
    for (const int one : places) ranks.push_back(step_group.ranks()[static_cast<size_t>(one)]);
    return &step_group.world().group(std::move(ranks), "surgery");
  }

 private:
  bool trained(size_t parameter) const { return job_.engine.active->set().contains(job_.engine.model->parameters()[parameter].name); }
  size_t place(const std::string& name) const {
    const auto found = places_.find(name);
    CAIRN_CHECK(found != places_.end(), "{} is no parameter of the model", name);
    return found->second;
  }

  void add_families(const std::string& owner, std::vector<StateTensor> tensors) {
    for (StateTensor& one : tensors) {
      if (!one.by_element)
        base::fail_input(
            "optim.kind = {}: it keeps {} for several elements together, so parameters cannot be rearranged in a run. Use "
            "adamw or sgd.",
            job_.config.settings.optim.kind, one.name);
      const std::string kind = one.name.substr(0, one.name.find('.'));
      auto found = std::find_if(families_.begin(), families_.end(), [&](const StateFamily& f) { return f.name == owner + " " + kind; });
      if (found == families_.end())
        found = families_.insert(families_.end(), StateFamily{.name = owner + " " + kind, .moments = kind != kMissedCounts});
      found->tensors.emplace(one.parameter, std::move(one));
    }
  }

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions().dtype(dtype).device(job_.config.device); }
  at::Tensor zeros(size_t parameter, at::ScalarType dtype) const { return at::zeros(values_.at(parameter).shape, options(dtype)); }

  // The whole tensor, on every rank of the group. May share memory with this rank's own.
  at::Tensor assemble(const StateTensor& one, comm::Group& holders) const {
    const std::vector<parallel::StateMap::Holding>& holdings = job_.state_map->holdings(one.parameter);
    const mesh::Fragment all = mesh::whole_tensor(one.shape);
    const bool everywhere = std::ssize(holdings) == holders.size() &&
                            std::all_of(holdings.begin(), holdings.end(), [&](const auto& held) { return held.fragment == all; });
    if (everywhere) return one.mine.view(one.shape);
    const std::vector<int>& members = holders.ranks();
    std::vector<std::pair<mesh::LocalShard, at::Tensor>> locals;  // tensors of which ranks have parts
    std::vector<mesh::Fragment> done;
    for (const parallel::StateMap::Holding& held : holdings) {
      if (std::find(done.begin(), done.end(), held.fragment) != done.end()) continue;
      done.push_back(held.fragment);
      const int from = job_.engine.step_group->ranks()[static_cast<size_t>(held.rank)];
      const auto root = static_cast<int>(std::find(members.begin(), members.end(), from) - members.begin());
      const at::Tensor part = root == holders.rank() ? one.mine.to(one.dtype).reshape({-1}).contiguous()
                                                     : at::empty({held.fragment.elements.length()}, options(one.dtype));
      holders.broadcast(part, root, {comm::Purpose::state, one.name}).wait();
      auto found = std::find_if(locals.begin(), locals.end(), [&](const auto& local) { return local.first == held.fragment.local_shard; });
      if (found == locals.end())
        found = locals.insert(locals.end(),
                              {held.fragment.local_shard, at::empty(held.fragment.local_shard.local_shape(), options(one.dtype))});
      found->second.view({-1}).narrow(0, held.fragment.elements.begin, part.numel()).copy_(part);
    }
    const at::Tensor whole = at::empty(one.shape, options(one.dtype));
    for (const auto& [shard, local] : locals) mesh::put_back(whole, shard, local);
    return whole;
  }

  // Writes this rank's part of a whole tensor.
  void keep(const StateTensor& one, const at::Tensor& whole) const {
    if (!one.mine.defined()) return;
    const mesh::LocalShard& held = job_.engine.store->shard().parameters[one.parameter].local_shard;
    const at::Tensor local = mesh::cut_out(whole, held).reshape({-1});
    one.mine.view({-1}).copy_(local.narrow(0, one.elements.begin, one.mine.numel()));
  }

  // Islands go on from the parameters that they have in common.
  void take_common(const std::vector<size_t>& parameters) const {
    for (const StateFamily& family : families_)
      for (const size_t p : parameters)
        if (const auto found = family.tensors.find(p);
            family.name == "common" && found != family.tensors.end() && found->second.mine.defined())
          values_.at(p).mine.view({-1}).copy_(found->second.mine.view({-1}));
  }

  void rearrange_buffers(const optim::Rearrangement& change) const {
    std::vector<at::Tensor> whole;
    for (const std::string& name : change.tensors) {
      const auto found = job_.engine.buffers.find(name);
      CAIRN_CHECK(found != job_.engine.buffers.end(), "{} is neither a parameter nor a buffer of the model", name);
      whole.push_back(found->second);
    }
    const std::vector<at::Tensor> results = optim::rearranged(change, whole);
    for (size_t i = 0; i < whole.size(); ++i) whole[i].copy_(results[i]);
  }

  void zero_moments(size_t parameter) const {
    for (const StateFamily& family : families_)
      if (const auto found = family.tensors.find(parameter);
          family.moments && found != family.tensors.end() && found->second.mine.defined())
        found->second.mine.zero_();
    if (trained(parameter)) job_.engine.active->restart(job_.engine.model->parameters()[parameter].name, updates_);
  }

  void zero_moments(size_t parameter, const std::vector<mesh::Box>& boxes) const {
    const mesh::LocalShard& held = job_.engine.store->shard().parameters[parameter].local_shard;
    for (const StateFamily& family : families_) {
      const auto found = family.tensors.find(parameter);
      const bool counts = family.name == std::string("optimizer ") + kMissedCounts;
      if ((!family.moments && !counts) || found == family.tensors.end() || !found->second.mine.defined()) continue;
      const StateTensor& one = found->second;
      const at::Tensor flat = one.mine.view({-1});
      for (const mesh::FragmentBox& mine : mesh::boxes_of({held, {one.elements.begin, one.elements.begin + flat.numel()}}))
        for (const mesh::Box& box : boxes)
          if (const auto part = mesh::intersect(mine.box, box)) {
            std::vector<int64_t> lengths;
            for (const mesh::Interval& dim : part->dims) lengths.push_back(dim.length());
            flat.as_strided(lengths, mine.strides, flat.storage_offset() + mesh::start_of(*part, mine)).fill_(counts ? updates_ : 0);
          }
    }
  }

  Job& job_;
  const int64_t updates_;
  std::map<std::string, size_t> places_;
  std::map<size_t, StateTensor> values_;
  std::vector<StateFamily> families_;
};

namespace {

void check_rules(const Job& job) {
  const Settings& s = job.config.settings;
  const auto check = [](const char* key, const std::string& kind) {
    if (!sync::needs_of(kind).may_rearrange)
      base::fail_input("{} = {}: its messages may be under way when parameters are rearranged. Use all_reduce or diloco.", key, kind);
  };
  check("sync.dp.kind", s.sync.kind);
  if (parallel::islands_step_separately(job.config.plan)) check("sync.island.kind", s.island.kind);
}

}  // namespace

SurgeryInParts::SurgeryInParts(Job& job) : job_(job) {
  check_rules(job);
  mesh::before_writing_all(job.engine.trained.barrier);
  job.engine.store->wait_for_gathers();
  operation_ = std::make_unique<Operation>(job);
}

SurgeryInParts::~SurgeryInParts() = default;

void SurgeryInParts::apply(const optim::Surgery& surgery) {
  for (const optim::SurgeryStep& step : surgery) std::visit([&](const auto& change) { operation_->run(change); }, step);
}

comm::Group* SurgeryInParts::holders(const std::vector<size_t>& parameters) const { return operation_->group_of(parameters); }

std::vector<at::Tensor> SurgeryInParts::whole(const std::vector<size_t>& parameters) const { return operation_->common(parameters); }

void SurgeryInParts::finish() {
  job_.engine.active->changed_by_surgery();
  job_.engine.store->updated();
}

void operate(Job& job, const optim::Surgery& surgery) {
  SurgeryInParts parts(job);
  parts.apply(surgery);
  parts.finish();
}

at::Tensor whole_parameter(Job& job, size_t parameter) {
  const StateTensor one = model_state(job)[parameter];
  comm::Group& group = *job.engine.step_group;
  at::Tensor whole = job.assembly->trivial() ? one.mine : job.assembly->gather(parameter, one.mine, one.name);
  if (job.assembly->trivial()) return whole.to(at::kFloat).view(one.shape);
  whole =
      group.rank() == 0 ? whole.to(job.config.device).contiguous() : at::empty(one.shape, at::TensorOptions().device(job.config.device));
  group.broadcast(whole, 0, {comm::Purpose::state, one.name}).wait();
  return whole.view(one.shape);
}

}  // namespace cairn::train
