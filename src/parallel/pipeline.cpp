#include "parallel/pipeline.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/schedule_check.h"
#include "parallel/share.h"
#include "parallel/stage_run.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kDimsMost = 8;
constexpr int kActionsAhead = 2;  // whose messages are asked for while an action runs

using Key = std::tuple<std::string, int, int, bool, int>;  // value, from, to, gradient, micro-batch
Key key_of(const Message& m) { return {m.crossing.value, m.crossing.from, m.crossing.to, m.gradient, m.micro_batch}; }

// Forwards alone, one micro-batch after the other.
Schedule forwards_only(const Plan& plan, int ranks, int micro_batches) {
  Schedule schedule{.name = "forward", .micro_batches = micro_batches, .rank_of_stage = plan.rank_of_stage, .actions = {}};
  schedule.actions.resize(static_cast<size_t>(ranks));
  for (int m = 0; m < micro_batches; ++m)
    for (size_t stage = 0; stage < plan.rank_of_stage.size(); ++stage)
      schedule.actions[static_cast<size_t>(plan.rank_of_stage[stage])].push_back({ActionKind::forward, static_cast<int>(stage), m});
  return schedule;
}

std::vector<int64_t> shape_of(const mesh::Batch& batch) {
  const auto tokens = batch.fields.find("tokens");
  return tokens == batch.fields.end() ? std::vector<int64_t>{batch.samples()} : tokens->second.tensor.sizes().vec();
}

}  // namespace

struct Pipeline::Prepared {
  Schedule schedule;
  std::vector<std::vector<Message>> from;  // by rank: what it sends here, in order
};

// The messages of one run.
struct Pipeline::Traffic {
  Pipeline& owner;
  const Prepared& plan;
  std::span<const Pass> passes;
  struct Coming {
    at::Tensor tensor;
    comm::Work work;
  };
  std::vector<size_t> asked = std::vector<size_t>(plan.from.size(), 0);  // by rank: messages that were asked for
  std::map<Key, Coming> coming = {};
  std::map<Key, at::Tensor> here = {};  // between stages of one rank
  std::deque<std::pair<at::Tensor, comm::Work>> going = {};

  using Shape = std::pair<std::string, std::vector<int64_t>>;
  Shape shape_key(const Message& m) const { return {m.crossing.value, shape_of(passes[static_cast<size_t>(m.micro_batch)].batch)}; }
  bool empty(int micro_batch) const { return passes[static_cast<size_t>(micro_batch)].batch.samples() == 0; }
  int rank_of(int stage) const { return plan.schedule.rank_of_stage[static_cast<size_t>(stage)]; }

  void send(const Message& m, const at::Tensor& tensor) {
    const int to = rank_of(m.gradient ? m.crossing.from : m.crossing.to);
    if (to == owner.along_.rank()) {
      here[key_of(m)] = tensor;
      return;
    }
    const at::Tensor dense = tensor.contiguous();
    // The first of its shape is announced; gradients have the shape of their values, which both sides know by then.
    if (!m.gradient && owner.announced_.insert({shape_key(m), to}).second) {
      CAIRN_CHECK(dense.dim() <= kDimsMost, "{} has {} dims", m.crossing.value, dense.dim());
      at::Tensor header = at::zeros({kDimsMost + 2}, at::kLong);
      auto* numbers = header.mutable_data_ptr<int64_t>();
      numbers[0] = static_cast<int64_t>(dense.scalar_type());
      numbers[1] = dense.dim();
      for (int64_t i = 0; i < dense.dim(); ++i) numbers[2 + i] = dense.size(i);
      going.emplace_back(header, owner.along_.send(header, to, {comm::Purpose::control, m.crossing.value}));
      owner.shapes_[shape_key(m)] = {dense.sizes().vec(), static_cast<int>(dense.scalar_type())};
    }
    going.emplace_back(dense, owner.along_.send(dense, to, {comm::Purpose::activation, m.crossing.value}));
    while (!going.empty() && going.front().second.ready()) going.pop_front();
  }

  bool known(const Message& m) const { return owner.shapes_.contains(shape_key(m)); }

  // Asks for the next message of a rank; waits for its shape where that is new.
  void ask(int rank) {
    const Message& m = plan.from[static_cast<size_t>(rank)][asked[static_cast<size_t>(rank)]++];
    if (empty(m.micro_batch)) return;
    if (!known(m)) {
      const at::Tensor header = at::empty({kDimsMost + 2}, at::kLong);
      owner.along_.recv(header, rank, {comm::Purpose::control, m.crossing.value}).wait_host();
      const auto* numbers = header.const_data_ptr<int64_t>();
      CAIRN_CHECK(numbers[1] >= 0 && numbers[1] <= kDimsMost, "{} dims for {}", numbers[1], m.crossing.value);
      owner.shapes_[shape_key(m)] = {std::vector<int64_t>(numbers + 2, numbers + 2 + numbers[1]), static_cast<int>(numbers[0])};
    }
    const auto& [shape, dtype] = owner.shapes_.at(shape_key(m));
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(passes.front().batch.ids.device());
    Coming& one = coming[key_of(m)];
    one.tensor = at::empty(shape, options);
    one.work = owner.along_.recv(one.tensor, rank, {comm::Purpose::activation, m.crossing.value});
  }

  // Asks for messages of the message's sender up to it. `wait`: also where that means waiting for a shape.
  void ask_up_to(const Message& m, bool wait) {
    const int rank = rank_of(m.gradient ? m.crossing.to : m.crossing.from);
    if (rank == owner.along_.rank()) return;
    const std::vector<Message>& all = plan.from[static_cast<size_t>(rank)];
    size_t& next = asked[static_cast<size_t>(rank)];
    while (next < all.size() && !coming.contains(key_of(m))) {
      if (!wait && !empty(all[next].micro_batch) && !known(all[next])) return;
      ask(rank);
    }
  }

  at::Tensor receive(const Message& m) {
    if (rank_of(m.gradient ? m.crossing.to : m.crossing.from) == owner.along_.rank()) return std::move(here.extract(key_of(m)).mapped());
    ask_up_to(m, true);
    const auto found = coming.find(key_of(m));
    CAIRN_CHECK(found != coming.end(), "{} of micro-batch {} was never sent", m.crossing.value, m.micro_batch);
    found->second.work.wait();
    at::Tensor tensor = std::move(found->second.tensor);
    coming.erase(found);
    return tensor;
  }

  // What an action must be given.
  std::vector<Message> needs_of(const Action& action) const {
    std::vector<Message> needs;
    for (const Crossing& crossing : owner.crossings_) {
      if (action.kind == ActionKind::forward && crossing.to == action.stage) needs.push_back({crossing, false, action.micro_batch});
      if ((action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) && crossing.from == action.stage)
        needs.push_back({crossing, true, action.micro_batch});
    }
    return needs;
  }

  void finish() {
    for (auto& [tensor, work] : going) work.wait();
    going.clear();
    CAIRN_CHECK(coming.empty() && here.empty(), "{} messages were not used", coming.size() + here.size());
  }
};

Pipeline::Pipeline(const model::Model& model, const Plan& plan, comm::Group& along, MakeSchedule make_schedule)
    : model_(model), plan_(plan), along_(along), make_schedule_(std::move(make_schedule)), crossings_(crossings(model, plan)) {}

Pipeline::~Pipeline() = default;

const Pipeline::Prepared& Pipeline::prepared(int micro_batches, bool gradients) {
  auto& found = prepared_[{micro_batches, gradients}];
  if (found) return *found;
  found = std::make_unique<Prepared>();
  found->schedule = gradients ? make_schedule_(micro_batches) : forwards_only(plan_, along_.size(), micro_batches);
  if (gradients) check(found->schedule);
  for (int rank = 0; rank < along_.size(); ++rank) found->from.push_back(messages(found->schedule, crossings_, rank, along_.rank()));
  return *found;
}

std::vector<model::Losses> Pipeline::run(std::span<const Pass> passes) {
  const bool gradients = passes.front().into != nullptr;
  const Prepared& plan = prepared(static_cast<int>(passes.size()), gradients);
  const std::vector<Action>& actions = plan.schedule.actions[static_cast<size_t>(along_.rank())];
  const int last_stage = plan.schedule.stages() - 1;
  Traffic traffic{.owner = *this, .plan = plan, .passes = passes};

  // The weights of this rank's stages stay together for the whole step: micro-batches come and go between them.
  std::vector<mesh::ParamId> named;
  for (int stage = 0; stage <= last_stage; ++stage) {
    if (plan.schedule.rank_of_stage[static_cast<size_t>(stage)] != along_.rank()) continue;
    const BlockRange range = blocks_of_stage(plan_, stage, model_.blocks().size());
    for (size_t i = range.first; i < range.last; ++i) {
      const std::vector<mesh::ParamId> ids = model::named_parameters(model_.blocks()[i]->card());
      named.insert(named.end(), ids.begin(), ids.end());
    }
  }
  passes.front().at.fetch(named);

  std::map<std::pair<int, int>, std::pair<std::unique_ptr<Pass>, std::unique_ptr<StageRun>>> runs;  // by stage and micro-batch
  std::vector<model::Losses> losses;
  for (const Pass& pass : passes) losses.push_back(no_losses(pass));
  const base::Clock& wall = along_.world().wall();
  const double begun = base::seconds(wall.now());
  if (gradients) measured_.clear(), live_most_ = 0;

  for (size_t a = 0; a < actions.size(); ++a) {
    const Action& action = actions[a];
    const Pass& pass = passes[static_cast<size_t>(action.micro_batch)];
    if (pass.batch.samples() == 0) continue;  // on all ranks of the pipeline
    std::vector<std::pair<Message, at::Tensor>> given;
    {
      std::optional<base::Trace::Span> traced;
      if (pass.trace) traced.emplace(pass.trace->span("wait for a neighbour", "pipeline"));
      for (const Message& need : traffic.needs_of(action)) given.emplace_back(need, traffic.receive(need));
    }
    for (size_t next = a + 1; next < actions.size() && next <= a + kActionsAhead; ++next)
      for (const Message& need : traffic.needs_of(actions[next])) traffic.ask_up_to(need, false);

    const double action_begun = base::seconds(wall.now());
    auto& [own, run] = runs[{action.stage, action.micro_batch}];
    if (action.kind == ActionKind::forward) {
      own = std::make_unique<Pass>(pass);
      for (const Crossing& crossing : crossings_)
        if (crossing.from == action.stage) own->outputs.push_back(crossing.value);
      run = std::make_unique<StageRun>(*own, blocks_of_stage(plan_, action.stage, model_.blocks().size()), /*releases=*/false);
      for (auto& [message, tensor] : given) run->put(message.crossing.value, std::move(tensor));
      run->forward();
      for (const Crossing& crossing : crossings_)
        if (crossing.from == action.stage) traffic.send({crossing, false, action.micro_batch}, run->output(crossing.value));
      if (action.stage == last_stage) losses[static_cast<size_t>(action.micro_batch)] = run->judge();
      run->forget_outputs();
      if (!gradients) runs.erase({action.stage, action.micro_batch});
    } else {
      for (auto& [message, tensor] : given) run->put_gradient(message.crossing.value, std::move(tensor));
      if (action.kind == ActionKind::backward) run->backward();
      if (action.kind == ActionKind::backward_input) run->backward_input();
      if (action.kind == ActionKind::backward_weight) run->backward_weight();
      if (action.kind != ActionKind::backward_weight)
        for (const Crossing& crossing : crossings_)
          if (crossing.to == action.stage) traffic.send({crossing, true, action.micro_batch}, run->input_gradient(crossing.value));
      if (action.kind != ActionKind::backward_input) runs.erase({action.stage, action.micro_batch});
    }
    live_most_ = std::max(live_most_, static_cast<int64_t>(runs.size()));
    along_.progress();
    if (gradients) measured_.push_back({action, action_begun - begun, base::seconds(wall.now()) - begun});
  }
  traffic.finish();
  passes.front().at.release(named);
  return losses;
}

}  // namespace cairn::parallel
