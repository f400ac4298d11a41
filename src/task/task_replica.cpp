#include "task/task_replica.h"

#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/dtensor.h"
#include "optim/needs.h"
#include "snapshot/snapshot.h"
#include "task/calls.h"
#include "task/trainer.h"
#include "train/parameter_piece.h"
#include "train/state/full_state.h"

namespace cairn::task {
namespace {

// Parameters without blocks: the task computes with them.
class Bare final : public model::Model {
 public:
  explicit Bare(const Params& of) {
    for (const mesh::NamedTensor& one : of.all()) {
      if (!one.tensor.defined() || !one.tensor.is_floating_point())
        base::fail_input("parameter \"{}\" is {}: parameters are tensors of floating-point numbers", one.name,
                         one.tensor.defined() ? c10::toString(one.tensor.scalar_type()) : "no tensor");
      add(model::Parameter{.name = one.name, .shape = one.tensor.sizes().vec()});
    }
  }
  model::Buffers make_buffers(const at::TensorOptions&) const override { return {}; }
};

// A task's passes compute their own losses.
class Unused final : public model::Objective {
 public:
  Separates separates() const override { return Separates::samples; }
  model::Losses evaluate(model::Values&, const mesh::Batch&, model::Values*, double, const mesh::Axes&) const override {
    CAIRN_CHECK(false, "a task has no objective");
  }
};

optim::OptimOptions optim_of(const TrainerOptions& o) {
  optim::OptimOptions options;
  options.kind = o.optimizer;
  options.learning_rate = o.learning_rate;
  options.beta2 = o.beta2;
  options.momentum = o.momentum;
  options.nesterov = false;
  options.weight_decay = o.weight_decay;
  options.max_grad_norm = o.max_grad_norm;
  return options;
}

mesh::ParamId id_of(size_t parameter) { return {static_cast<int32_t>(parameter), 1}; }

}  // namespace

TaskReplica::TaskReplica(Deployer& deployer, TaskFunctions functions, const Params& start, const TrainerOptions& options)
    : deployer_(deployer),
      functions_(std::move(functions)),
      options_(options),
      micro_batch_(options.per_device_batch),
      random_(deployer.random("task").for_name(options.name)) {
  if (start.size() == 0) base::fail_input("trainer \"{}\": no parameters to train", options.name);
  if (functions_.train_step.finish && options.zero > 0)
    base::fail_input("trainer \"{}\": train_step.finish needs whole sums, which zero = {} shards. Use zero = 0.", options.name,
                     options.zero);
  if (options.precision == "bf16" && options.zero > 0)
    base::fail_input("trainer \"{}\": precision = bf16 does not work with zero = {}: params() would be rounded. Use zero = 0, or fp32.",
                     options.name, options.zero);
  job_.config.settings.optim = optim_of(options);
  job_.config.plan.mesh = deployer.mesh();
  if (options.zero > 0) job_.config.plan.mesh.axes.front().name = "shard";
  job_.config.plan.zero = options.zero;
  job_.config.plan.micro_batch = options.per_device_batch;
  job_.config.device = deployer.device();
  comm::World& world = deployer.world();
  job_.instruments.trace = std::make_unique<base::Trace>(world.wall(), world.rank(), 0);
  train::Engine& engine = job_.engine;
  engine.model = std::make_unique<Bare>(start);
  engine.objective = std::make_unique<Unused>();
  engine.micro_batching.samples = options.per_device_batch;
  engine.clip_norm = options.max_grad_norm;
  engine.step_group = &deployer.replicas();
  engine.trace = job_.instruments.trace.get();
  engine.before_update = [this] { finish_gradients(); };
  job_.step = train::make_step(train::in_turn([this](const parallel::Pass& one) { return pass(one); }));
  build();
  reset(start);
}

void TaskReplica::build() {
  comm::World& world = deployer_.world();
  train::Engine& engine = job_.engine;
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(job_.config.device);
  engine.trained = {};
  for (const model::Parameter& one : engine.model->parameters()) engine.trained.full.push_back({one.name, one.elements()});
  engine.sync.reset();
  engine.store = std::make_unique<parallel::ParameterStore>(
      parallel::ParameterStore::Parts{.world = world,
                                      .model = *engine.model,
                                      .plan = job_.config.plan,
                                      .trained = std::vector<bool>(engine.model->parameters().size(), true),
                                      .master = fp32,
                                      .compute = options_.precision == "bf16" ? fp32.dtype(at::kBFloat16) : fp32});
  job_.assembly = std::make_unique<parallel::FullTensorGather>(
      parallel::FullTensorGather::Parts{.world = world, .model = *engine.model, .plan = job_.config.plan});
  for (const parallel::ParameterSlice& piece : engine.store->pieces()) {
    engine.trained.values.push_back({piece.name, piece.value});
    engine.trained.gradients.push_back({piece.name, piece.gradient});
  }
  engine.sync =
      sync::make_sync({}, {world.group(job_.config.plan.mesh.peers_along(world.rank(), parallel::replicating_axes(job_.config.plan))),
                           world.alone(), engine.trained.values, engine.trained.gradients});
}

void TaskReplica::place(const Examples& examples) {
  const auto& axis = deployer_.tensor_axis();
  if (!axis || !rules_.empty() || examples.count == 0) return;
  const Params whole = params();
  std::vector<int64_t> first;
  for (int64_t i = 0; i < std::min(micro_batch_, examples.count); ++i) first.push_back(i);
  const Batch batch = collated(examples, first, job_.config.device);
  const base::Random random = deployer_.random("task.sanity");
  rules_ = tensor_rules(axis, leaves(false).map(mesh::full_tensor), [&](const Params& traced) {
    functions_.train_step ? static_cast<void>(partial_sums(functions_, random, traced, batch))
                          : static_cast<void>(loss_of(functions_, random, traced, batch, /*training=*/false));
  });
  for (const auto& [name, rule] : rules_)
    if (rule.dim >= 0) job_.config.plan.placements[name] = {{{"tp", mesh::Split{rule.dim, {}}}}};
  build();
  reset(whole);
}

mesh::Placement::How TaskReplica::placement(size_t parameter) const {
  return parallel::placement_of(job_.config.plan, job_.engine.model->parameters()[parameter].name).on("tp");
}

at::Tensor TaskReplica::distributed(size_t parameter, const at::Tensor& local) const {
  return mesh::dtensor_from_local(deployer_.tensor_axis(), local, placement(parameter), job_.engine.model->parameters()[parameter].shape);
}

// Of a replicated parameter every rank along tp contributes a term, and the sink sums them.
at::Tensor TaskReplica::local(size_t parameter, const at::Tensor& gradient) const {
  const auto& axis = deployer_.tensor_axis();
  const at::Tensor precise = gradient.detach().to(at::kFloat);
  if (!axis) return precise.contiguous();
  const mesh::Placement::How how = placement(parameter);
  const bool replicated = std::holds_alternative<mesh::Replicate>(how);
  return mesh::to_local(axis, precise, replicated ? mesh::Placement::How(mesh::Partial{}) : how, "gradient").contiguous();
}

void TaskReplica::fresh_optimizer() {
  std::vector<optim::ParameterPiece> pieces;
  for (const parallel::ParameterSlice& piece : job_.engine.store->pieces())
    pieces.push_back(train::make_piece(job_.engine.model->parameters()[piece.parameter], piece.value, piece.gradient));
  job_.engine.optimizer = optim::make_optimizer(job_.config.settings.optim, std::move(pieces));
  if (job_.config.plan.zero > 0 && !optim::optimizer_needs(job_.config.settings.optim.kind).elementwise())
    base::fail_input("optimizer {} works on whole matrices, which zero = {} cuts. Use {}, or zero = 0.", job_.config.settings.optim.kind,
                     job_.config.plan.zero, optim::elementwise_optimizers());
  if (deployer_.tp() > 1 && !optim::optimizer_needs(job_.config.settings.optim.kind).elementwise())
    base::fail_input("optimizer {} works on whole matrices, which tp = {} splits. Use {}, or tp = 1.", job_.config.settings.optim.kind,
                     deployer_.tp(), optim::elementwise_optimizers());
}

void TaskReplica::reset(const Params& to) {
  const std::vector<model::Parameter>& parameters = job_.engine.model->parameters();
  if (to.size() != parameters.size()) base::fail_input("{} parameters for a trainer that has {}", to.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = to[parameters[i].name];
    if (value.sizes() != at::IntArrayRef(parameters[i].shape))
      base::fail_input("parameter \"{}\" is [{}], the trainer's is [{}]", parameters[i].name, fmt::join(value.sizes(), ", "),
                       fmt::join(parameters[i].shape, ", "));
    job_.engine.store->load(i, value.detach().to(job_.config.device, at::kFloat).contiguous());
  }
  job_.engine.store->updated();
  fresh_optimizer();
}

Params TaskReplica::leaves(bool differentiable) const {
  mesh::NamedTensors all;
  for (size_t i = 0; i < job_.engine.model->parameters().size(); ++i) {
    const at::Tensor here = job_.engine.store->weights().get(id_of(i)).detach();
    all.push_back(
        {job_.engine.model->parameters()[i].name, (deployer_.tensor_axis() ? distributed(i, here) : here).requires_grad_(differentiable)});
  }
  return all;
}

// From what the optimizer updates: in bf16, passes read rounded values.
Params TaskReplica::params() const {
  mesh::NamedTensors all;
  for (size_t i = 0; i < job_.engine.model->parameters().size(); ++i) {
    const at::Tensor own = options_.zero > 0 ? job_.engine.store->weights().get(id_of(i)) : job_.engine.store->pieces()[i].value;
    const at::Tensor whole = deployer_.tensor_axis() ? mesh::full_tensor(distributed(i, own)) : own;
    all.push_back({job_.engine.model->parameters()[i].name, whole.detach().clone()});
  }
  return all;
}

model::Losses TaskReplica::pass(const parallel::Pass& micro_batch) {
  const at::Tensor& ids = micro_batch.batch.ids;
  const Batch batch = collated(*examples_, {ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.size(0))}, job_.config.device);
  // By the place in the global batch: any number of ranks draws the same numbers.
  const int64_t place = micro_batch.batch.field("place").const_data_ptr<int64_t>()[0];
  const base::Random random = step_random_.for_index(static_cast<uint64_t>(place / micro_batch_));
  Params sums;
  WeightedLoss loss;
  if (functions_.train_step) {
    TrainStep::Part part = partial_sums(functions_, random, leaves(false), batch);
    sums = std::move(part.sums);
    loss = weighted_loss(part.loss, batch.samples());
  } else {
    const Params params = leaves(true);
    loss = loss_of(functions_, random, params, batch, /*training=*/true);
    sums = gradients_of(loss, params);
  }
  for (size_t i = sums.size(); i-- > 0;)  // the last first, as units leave
    micro_batch.into->add(id_of(i), local(i, sums[job_.engine.model->parameters()[i].name]));
  micro_batch.into->end_pass();
  const at::Tensor sum = mesh::full_tensor(loss.sum.detach()).to(at::kDouble), weight = mesh::full_tensor(loss.weight);
  totals_ += at::stack({sum, weight});
  return {.sum = sum, .count = weight};
}

void TaskReplica::finish_gradients() {
  deployer_.replicas().all_reduce(totals_, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait();
  const mesh::NamedTensors& gradients = job_.engine.trained.gradients;
  if (functions_.train_step.finish) {
    mesh::NamedTensors sums = gradients;
    for (size_t i = 0; i < sums.size(); ++i)
      sums[i].tensor = deployer_.tensor_axis() ? distributed(i, sums[i].tensor.clone()) : sums[i].tensor.detach().clone();
    const Params finished = finish_sums(functions_, step_random_.for_purpose("finish"), sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor& made = finished[gradients[i].name];
      gradients[i].tensor.copy_(deployer_.tensor_axis() ? mesh::to_local(deployer_.tensor_axis(), made, placement(i), "finish") : made);
    }
  }
  const at::Tensor weight = totals_[1].to(at::kFloat);
  for (const mesh::NamedTensor& one : gradients) one.tensor.div_(weight);
}

StepResult TaskReplica::step(const Examples& examples, std::span<const int64_t> places, const StepPosition& at) {
  examples_ = &examples;
  step_random_ = random_.for_index(static_cast<uint64_t>(at.step));
  totals_ = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(job_.config.device));
  const auto count = static_cast<int64_t>(places.size());
  mesh::Batch batch;
  batch.ids = at::tensor(at::IntArrayRef(places.data(), places.size()), at::kLong);
  batch.fields["place"] = {at::arange(at.first, at.first + count, at::kLong)};
  // Each pass adds the gradient of its sum; finish_gradients divides by the total weight, which is not known before.
  const train::StepOutput output = job_.step->run(job_.engine, {.step = at.step,
                                                                .batch = batch,
                                                                .tokens = 0,
                                                                .loss_denominator = 1,
                                                                .learning_rate = at.learning_rate,
                                                                .update = at.update,
                                                                .max_local_samples = count});
  examples_ = nullptr;
  const at::Tensor totals = totals_.cpu();
  return {.loss = totals[0].item<double>() / totals[1].item<double>(), .gradient_norm = output.gradient_norm.item<double>()};
}

double TaskReplica::mean_loss(const Examples& examples) const {
  const Params params = leaves(false);
  const base::Random random = deployer_.random("task.evaluate");
  at::Tensor totals = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(job_.config.device));
  const int64_t batches = (examples.count + micro_batch_ - 1) / micro_batch_;
  for (int64_t index = deployer_.replica(); index < batches; index += deployer_.dp()) {
    std::vector<int64_t> places;
    for (int64_t i = index * micro_batch_; i < std::min((index + 1) * micro_batch_, examples.count); ++i) places.push_back(i);
    const WeightedLoss loss = loss_of(functions_, random.for_index(static_cast<uint64_t>(index)), params,
                                      collated(examples, places, job_.config.device), /*training=*/false);
    totals += at::stack({mesh::full_tensor(loss.sum.detach()).to(at::kDouble), mesh::full_tensor(loss.weight)});
  }
  deployer_.replicas().all_reduce(totals, comm::Reduce::sum, {comm::Purpose::loss, "evaluation"}).wait_host();
  totals = totals.cpu();
  return totals[0].item<double>() / totals[1].item<double>();
}

std::pair<mesh::NamedTensors, mesh::NamedTensors> TaskReplica::whole_state() {
  mesh::NamedTensors model = train::gather_whole(job_, train::parameter_state(job_));
  return {std::move(model), train::gather_whole(job_, train::optimizer_state(job_))};
}

void TaskReplica::load(const snapshot::OpenSnapshot& from) {
  train::load(job_, from, "model", train::parameter_state(job_));
  if (const auto state = train::optimizer_state(job_); !state.empty()) train::load(job_, from, "optimizer", state);
  job_.engine.store->updated();
}

}  // namespace cairn::task
