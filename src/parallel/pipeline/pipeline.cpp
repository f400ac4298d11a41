// The pipeline runtime. Per rank and number of micro-batches, a schedule becomes an actor graph once (`prepared`). A run then gives each
// actor a body: forward, backward and weight-gradient actors drive a StageRun, send and receive actors move values along stage edges.
//
// Messages between two ranks go in the order in which the sender makes them, so no tags are needed. Shapes are not known in advance (they
// follow from the batch): the first value of a shape is preceded by a small header; gradients have the shape of their values. A receive
// starts as soon as its register is free and its shape is known; it is waited for when the stage needs the value.
#include "parallel/pipeline/pipeline.h"

#include <algorithm>
#include <any>
#include <deque>
#include <optional>
#include <utility>

#include <c10/util/accumulate.h>

#include "base/actors/runtime.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/activations/stream_parts.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pass_run.h"
#include "parallel/pipeline/actors.h"
#include "parallel/schedule/check.h"
#include "parallel/stage_run.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kMaxDims = 8;

// The schedule of a pass without gradients: forwards only, one micro-batch after the other.
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

// The stages that a message goes from and to.
int leaves(const StageMessage& m) { return m.gradient ? m.edge.to : m.edge.from; }
int arrives(const StageMessage& m) { return m.gradient ? m.edge.from : m.edge.to; }

}  // namespace

struct Pipeline::Prepared {
  Schedule schedule;
  PipelineActors actors;
};

// The messages of one run.
struct Pipeline::Messages {
  Pipeline& owner;
  std::span<const Pass> passes;
  StreamParts parts;
  std::map<std::pair<int, int>, mesh::Batch> routed = {};  // by stage and micro-batch: batches of other islands that are routed here
  struct PendingReceive {
    StageMessage message;
    at::Tensor tensor = {};
    comm::Work work = {};
    bool started = false;
  };
  std::map<int, std::deque<std::shared_ptr<PendingReceive>>> expected = {};  // by rank: receives that are not started

  using Shape = std::pair<std::string, std::vector<int64_t>>;
  const mesh::Batch& batch(int stage, int micro_batch) const {
    const auto found = routed.find({stage, micro_batch});
    return found == routed.end() ? passes[static_cast<size_t>(micro_batch)].batch : found->second;
  }
  Shape shape_key(const StageMessage& m, int stage) const { return {m.edge.value, shape_of(batch(stage, m.micro_batch))}; }
  Shape shape_leaving(const StageMessage& m) const { return shape_key(m, leaves(m)); }
  Shape shape_arriving(const StageMessage& m) const { return shape_key(m, arrives(m)); }
  // Whether the shape of a message is known: gradients have that of the values that were sent from here.
  bool known(const StageMessage& m, int from) const {
    const Shape key = shape_arriving(m);
    return m.gradient ? owner.shapes_.contains(key) : owner.shapes_received_.contains({key, from});
  }

  // What crosses a border along tp: each rank's part of it, or (pipeline.scatter_boundaries = false) all of it on every rank. A value that
  // is in parts where it should cross as a whole was gathered by the stage (`boundary`), since all ranks along tp must do that in one
  // order.
  StreamForm form(const StageMessage& m) const { return parts.form(m.edge.value, passes.front().options.scatter_boundaries); }
  at::Tensor boundary(const StageMessage& m, const at::Tensor& value, int64_t tokens) const {
    return form(m) == StreamForm::whole ? parts.to_form(value, StreamForm::whole, tokens, m.edge.value) : value;
  }

  base::PendingTurn send(const StageMessage& m, const at::Tensor& tensor, int to) {
    const at::Tensor whole = tensor.contiguous();
    const at::Tensor dense = form(m) == StreamForm::part ? parts.to_form(whole, StreamForm::part, 0, m.edge.value) : whole;
    // The first value of a shape is preceded by a header.
    comm::Work announced;
    if (!m.gradient && owner.shapes_sent_.insert({shape_leaving(m), to}).second) {
      CAIRN_CHECK(whole.dim() <= kMaxDims, "{} has {} dims", m.edge.value, whole.dim());
      const at::Tensor header = at::zeros({kMaxDims + 2}, at::kLong);
      auto* numbers = header.mutable_data_ptr<int64_t>();
      numbers[0] = static_cast<int64_t>(whole.scalar_type());
      numbers[1] = whole.dim();
      for (int64_t i = 0; i < whole.dim(); ++i) numbers[2 + i] = whole.size(i);
      announced = owner.topology_.all.send(header, to, {comm::Purpose::control, m.edge.value});
      owner.shapes_[shape_leaving(m)] = {whole.sizes().vec(), static_cast<int>(whole.scalar_type())};
    }
    const comm::Work sent = owner.topology_.all.send(dense, to, {comm::Purpose::activation, m.edge.value});
    base::Trace* const trace = passes.front().trace;
    return {[announced, sent] { return announced.ready() && sent.ready(); },
            [announced, sent, dense, trace] {
              std::optional<base::Trace::Span> traced;
              if (trace) traced.emplace(trace->span("wait for a neighbour to receive", "pipeline"));
              announced.wait();
              sent.wait();
            }};
  }

  // Waits for the header where the shape is new.
  void start_receive(PendingReceive& one, int rank) {
    const Shape key = shape_arriving(one.message);
    if (!known(one.message, rank)) {
      const at::Tensor header = at::empty({kMaxDims + 2}, at::kLong);
      owner.topology_.all.recv(header, rank, {comm::Purpose::control, one.message.edge.value}).wait_host();
      const auto* numbers = header.const_data_ptr<int64_t>();
      CAIRN_CHECK(numbers[1] >= 0 && numbers[1] <= kMaxDims, "{} dims for {}", numbers[1], one.message.edge.value);
      owner.shapes_received_.insert({key, rank});
      owner.shapes_[key] = {std::vector<int64_t>(numbers + 2, numbers + 2 + numbers[1]), static_cast<int>(numbers[0])};
    }
    const auto& [shape, dtype] = owner.shapes_.at(key);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(passes.front().batch.ids.device());
    if (form(one.message) == StreamForm::part)
      one.tensor = at::empty({parts.part_elements(c10::multiply_integers(shape))}, options);
    else
      one.tensor = at::empty(shape, options);
    one.work = owner.topology_.all.recv(one.tensor, rank, {comm::Purpose::activation, one.message.edge.value});
    one.started = true;
  }

  std::shared_ptr<PendingReceive> post_receive(const StageMessage& m, int rank) {
    auto pending = std::make_shared<PendingReceive>(PendingReceive{.message = m});
    std::deque<std::shared_ptr<PendingReceive>>& queue = expected[rank];
    queue.push_back(pending);
    while (!queue.empty() && known(queue.front()->message, rank)) {
      start_receive(*queue.front(), rank);
      queue.pop_front();
    }
    return pending;
  }

  at::Tensor receive(PendingReceive& one, int rank) {
    std::deque<std::shared_ptr<PendingReceive>>& queue = expected[rank];
    while (!one.started) {
      CAIRN_CHECK(!queue.empty(), "{} of micro-batch {} was never sent", one.message.edge.value, one.message.micro_batch);
      const std::shared_ptr<PendingReceive> next = std::move(queue.front());
      queue.pop_front();
      start_receive(*next, rank);
    }
    one.work.wait();
    const std::vector<int64_t>& shape = owner.shapes_.at(shape_arriving(one.message)).first;
    return parts.from_form(std::exchange(one.tensor, {}), form(one.message), shape, one.message.edge.value);
  }
};

// A stage at work on a micro-batch, from its forward to its last gradient.
struct Pipeline::StageInFlight {
  Pass pass;
  std::unique_ptr<StageRun> run;
};

Pipeline::Pipeline(const model::Model& model, const Plan& plan, PipelineTopology topology, MakeSchedule make_schedule)
    : model_(model),
      plan_(plan),
      topology_(std::move(topology)),
      make_schedule_(std::move(make_schedule)),
      edges_(stage_edges(model, plan)) {
  if (topology_.replicas == 1) return;
  for (const StageEdge& one : edges_)
    if (plan.rank_of_stage[static_cast<size_t>(one.from)] == plan.rank_of_stage[static_cast<size_t>(one.to)])
      base::fail_input(
          "pipeline.routing = random: {} stays on its rank with pipeline.schedule = {}, and could not go to another island. Use a schedule "
          "with one stage per rank (1f1b), or pipeline.routing = fixed",
          edge_name(one), plan.schedule);
}

Pipeline::~Pipeline() = default;

const Pipeline::Prepared& Pipeline::prepared(int micro_batches, bool gradients) {
  auto& found = prepared_[{micro_batches, gradients}];
  if (found) return *found;
  found = std::make_unique<Prepared>();
  found->schedule = gradients ? make_schedule_(micro_batches) : forwards_only(plan_, topology_.ranks, micro_batches);
  if (gradients) check(found->schedule);
  const EdgeRegisters registers = edge_registers(found->schedule, edges_, plan_.registers);
  found->actors = rank_actors(found->schedule, edges_, registers, topology_.along);
  return *found;
}

std::vector<mesh::ParamId> Pipeline::weights_of(int stage) const {
  std::vector<mesh::ParamId> named;
  const BlockRange range = blocks_of_stage(plan_, stage, model_.blocks().size());
  for (size_t i = range.first; i < range.last; ++i) {
    const std::vector<mesh::ParamId> ids = model::named_parameters(model_.blocks()[i]->card());
    named.insert(named.end(), ids.begin(), ids.end());
  }
  return named;
}

// What one run does at each turn of its actors.
struct Pipeline::Run {
  Pipeline& owner;
  const Prepared& plan;
  std::span<const Pass> passes;
  bool gradients;
  Messages messages;
  Routes routes = {};
  std::vector<model::Losses> losses = {};
  double begun = 0;
  int64_t live = 0;
  std::map<int, int> turns_left = {};                   // by stage of this rank: compute actions of this run that are to come
  std::shared_ptr<StageInFlight> offloading = nullptr;  // whose copies to the host are on their way

  double now() const { return base::seconds(owner.topology_.all.world().wall().now()); }
  int last_stage() const { return plan.schedule.stages() - 1; }
  int rank_of(int stage) const { return plan.schedule.rank_of_stage[static_cast<size_t>(stage)]; }
  // The rank that has, at `stage`, the micro-batch that this rank has at `own_stage`.
  int partner(int micro_batch, int own_stage, int stage) const {
    return owner.topology_.place(routes.replica_at(micro_batch, owner.topology_.replica, own_stage, stage), rank_of(stage));
  }
  int sender(const StageMessage& m) const { return partner(m.micro_batch, arrives(m), leaves(m)); }
  int receiver(const StageMessage& m) const { return partner(m.micro_batch, leaves(m), arrives(m)); }
  static StageMessage at_turn(StageMessage m, const base::TurnBuffers& turn) {
    m.micro_batch = static_cast<int>(turn.tag());
    return m;
  }
  const Pass& pass(const base::TurnBuffers& turn) const { return passes[static_cast<size_t>(turn.tag())]; }
  bool empty(const base::TurnBuffers& turn) const { return !runs_blocks(pass(turn)); }  // on all ranks of all pipelines

  // The values that an actor reads, by input.
  std::vector<at::Tensor> receive_inputs(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    std::optional<base::Trace::Span> traced;
    if (passes.front().trace) traced.emplace(passes.front().trace->span("wait for a neighbour", "pipeline"));
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < part.reads.size(); ++i) {
      const StageMessage message = at_turn(part.reads[i], turn);
      const std::any held = std::exchange(turn.input(i), {});
      tensors.push_back(rank_of(leaves(message)) == owner.topology_.along
                            ? std::any_cast<at::Tensor>(held)
                            : messages.receive(*std::any_cast<const std::shared_ptr<Messages::PendingReceive>&>(held), sender(message)));
    }
    return tensors;
  }

  void forward(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    if (empty(turn)) return;
    std::vector<at::Tensor> values = receive_inputs(part, turn);
    const double from = now();
    auto stage = std::make_shared<StageInFlight>(StageInFlight{.pass = pass(turn), .run = nullptr});
    stage->pass.batch = messages.batch(part.stage, static_cast<int>(turn.tag()));
    const bool ignored = stage->pass.batch.samples() == 0;
    if (ignored) stage->pass.batch = ignored_sample(stage->pass.batch);
    for (const StageMessage& message : part.writes) stage->pass.outputs.push_back(message.edge.value);
    stage->run = std::make_unique<StageRun>(stage->pass, blocks_of_stage(owner.plan_, part.stage, owner.model_.blocks().size()),
                                            /*releases=*/false);
    StageRun& run = *stage->run;
    for (size_t i = 0; i < values.size(); ++i) run.put(part.reads[i].edge.value, std::move(values[i]));
    run.forward();
    for (size_t i = 0; i < part.writes.size(); ++i)
      turn.output(i) = leaving(at_turn(part.writes[i], turn), run.output(part.writes[i].edge.value), run);
    model::Losses& found = losses[static_cast<size_t>(turn.tag())];
    if (part.stage == last_stage()) {
      const at::Tensor terms = std::exchange(found, run.evaluate_objective()).measures;  // of other stages of this rank
      if (terms.defined()) found.measures = found.measures + terms;
      if (ignored) found.per_sample = found.per_sample_count = at::Tensor();
    } else {
      run.add_terms(found);
    }
    run.drop_outputs();
    if (gradients) {
      turn.output(part.writes.size()) = std::move(stage);
      owner.peak_in_flight_ = std::max(owner.peak_in_flight_, ++live);
    }
    measured(ActionKind::forward, part, turn, from);
  }

  void backward(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    if (empty(turn)) return;
    std::vector<at::Tensor> values = receive_inputs(part, turn);
    const double from = now();
    std::any& kept = turn.input(part.reads.size());
    StageRun& run = *std::any_cast<const std::shared_ptr<StageInFlight>&>(kept)->run;
    for (size_t i = 0; i < values.size(); ++i) run.put_gradient(part.reads[i].edge.value, std::move(values[i]));
    const bool split_backward = part.split_backward.contains(turn.tag());
    split_backward ? run.backward_input() : run.backward();
    for (size_t i = 0; i < part.writes.size(); ++i)
      turn.output(i) = leaving(at_turn(part.writes[i], turn), run.input_gradient(part.writes[i].edge.value), run);
    if (!split_backward) release_stage(kept);
    measured(split_backward ? ActionKind::backward_input : ActionKind::backward, part, turn, from);
  }

  void weight(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    std::any& kept = turn.input(0);
    if (!kept.has_value()) return;  // backward did both gradients
    const double from = now();
    std::any_cast<const std::shared_ptr<StageInFlight>&>(kept)->run->backward_weight();
    release_stage(kept);
    measured(ActionKind::backward_weight, part, turn, from);
  }

  // A value on its way out of a stage, as its message carries it.
  at::Tensor leaving(const StageMessage& message, at::Tensor value, const StageRun& run) const {
    if (rank_of(arrives(message)) == owner.topology_.along) return value;  // it stays here
    return messages.boundary(message, value, run.tokens());
  }

  void recompute(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    if (empty(turn) || !part.listed.contains(turn.tag())) return;
    const double from = now();
    std::any_cast<const std::shared_ptr<StageInFlight>&>(turn.input(0))->run->recompute();
    measured(ActionKind::recompute, part, turn, from);
  }

  // The copy runs beside the next action, which then frees the memory.
  void offload(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    if (empty(turn) || !part.listed.contains(turn.tag())) return;
    const double from = now();
    offloading = std::any_cast<const std::shared_ptr<StageInFlight>&>(turn.input(0));
    offloading->run->offload();
    measured(ActionKind::offload, part, turn, from);
  }

  void gather(const PipelineActors::Part& part, const base::TurnBuffers& turn) {
    const double from = now();
    passes.front().at.fetch(owner.weights_of(part.stage));
    measured(ActionKind::gather, part, turn, from);
  }

  void reduce(const PipelineActors::Part& part, const base::TurnBuffers& turn) {
    const double from = now();
    for (const mesh::ParamId& id : owner.weights_of(part.stage)) passes.front().into->reduce(id);
    measured(ActionKind::reduce, part, turn, from);
  }

  // After an action of a stage: frees what was offloaded before it, and the stage's weights after its last action.
  void acted(const PipelineActors::Part& part, const std::shared_ptr<StageInFlight>& offloaded) {
    if (offloaded) offloaded->run->finish_offload();
    if (offloaded == offloading) offloading.reset();
    if (--turns_left.at(part.stage) > 0) return;
    std::vector<mesh::ParamId> others;
    for (const auto& [stage, left] : turns_left)
      if (left > 0) {
        const std::vector<mesh::ParamId> more = owner.weights_of(stage);
        others.insert(others.end(), more.begin(), more.end());
      }
    passes.front().at.release(owner.weights_of(part.stage), others);
  }

  void release_stage(std::any& kept) {
    kept.reset();
    --live;
  }

  void measured(ActionKind kind, const PipelineActors::Part& part, const base::TurnBuffers& turn, double from) {
    if (gradients) owner.measured_.push_back({{kind, part.stage, static_cast<int>(turn.tag())}, from - begun, now() - begun});
  }

  std::optional<base::PendingTurn> act(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    const bool stage = turns_left.contains(part.stage) && part.role < PipelineActors::Role::move;
    const std::shared_ptr<StageInFlight> offloaded = offloading;
    std::optional<base::PendingTurn> pending = start(part, turn);
    if (stage) acted(part, offloaded);
    return pending;
  }

  std::optional<base::PendingTurn> start(const PipelineActors::Part& part, base::TurnBuffers& turn) {
    const StageMessage message = at_turn({.edge = part.edge, .gradient = part.gradient}, turn);
    switch (part.role) {
      case PipelineActors::Role::forward:
        forward(part, turn);
        break;
      case PipelineActors::Role::backward:
        backward(part, turn);
        break;
      case PipelineActors::Role::weight:
        weight(part, turn);
        break;
      case PipelineActors::Role::recompute:
        recompute(part, turn);
        break;
      case PipelineActors::Role::offload:
        offload(part, turn);
        break;
      case PipelineActors::Role::gather:
        gather(part, turn);
        break;
      case PipelineActors::Role::reduce:
        reduce(part, turn);
        break;
      case PipelineActors::Role::send:
        if (!empty(turn)) return messages.send(message, std::any_cast<at::Tensor>(std::exchange(turn.input(0), {})), receiver(message));
        break;
      case PipelineActors::Role::receive:
        if (!empty(turn)) turn.output(0) = messages.post_receive(message, sender(message));
        break;
      case PipelineActors::Role::move:
        CAIRN_CHECK(false, "{} moves on one rank", part.edge.value);
    }
    return std::nullopt;
  }
};

std::vector<model::Losses> Pipeline::run(std::span<const Pass> passes) {
  const bool gradients = passes.front().into != nullptr;
  const Prepared& plan = prepared(static_cast<int>(passes.size()), gradients);

  // The weights of a stage stay gathered from its first action to its last, because micro-batches alternate between stages.
  std::map<int, int> turns_left;
  std::vector<int> stages;
  for (const base::ActorTurn& turn : plan.actors.graph.queues[static_cast<size_t>(plan.actors.compute)].order)
    ++turns_left[plan.actors.parts[static_cast<size_t>(turn.actor)].stage];
  std::set<int> gathered;
  for (const PipelineActors::Part& part : plan.actors.parts) {
    if (part.role == PipelineActors::Role::gather) gathered.insert(part.stage);
    if (part.role != PipelineActors::Role::reduce || !gradients) continue;
    for (const mesh::ParamId& id : weights_of(part.stage)) passes.front().into->hold(id);
  }
  for (const auto& [stage, turns] : turns_left) {
    stages.push_back(stage);
    if (!gathered.contains(stage)) passes.front().at.fetch(weights_of(stage));
  }

  Run run{.owner = *this,
          .plan = plan,
          .passes = passes,
          .gradients = gradients,
          .messages = {.owner = *this, .passes = passes, .parts = StreamParts(model_, passes.front().axes, passes.front().options)},
          .turns_left = turns_left};
  for (const Pass& pass : passes) run.losses.push_back(no_losses(pass));
  if (gradients) measured_.clear(), peak_in_flight_ = 0;
  if (gradients && topology_.replicas > 1) {  // evaluation passes are not routed: each island judges its own model
    run.routes = Routes(passes.front().random, topology_.replicas, static_cast<int>(passes.size()), plan.schedule.stages());
    std::vector<mesh::Batch> own;
    for (const Pass& pass : passes) own.push_back(pass.batch);
    run.messages.routed = exchange_routed_batches(topology_, run.routes, stages, own);
  }
  run.begun = run.now();

  // One thread runs all queues: links first, which only start messages, then the computation.
  std::vector<int> queues;
  for (int queue = 0; queue < static_cast<int>(plan.actors.graph.queues.size()); ++queue)
    if (queue != plan.actors.compute) queues.push_back(queue);
  queues.push_back(plan.actors.compute);
  std::vector<base::ActorBody> bodies;
  for (const PipelineActors::Part& part : plan.actors.parts)
    bodies.push_back([&run, &part](base::TurnBuffers& turn) { return run.act(part, turn); });
  base::ActorRuntime(plan.actors.graph, std::move(bodies), queues).run_here(queues, [&] { topology_.all.progress(); });
  return std::move(run.losses);
}

}  // namespace cairn::parallel
