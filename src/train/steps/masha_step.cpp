// MASHA on a neural network: train.method = "masha1" or "masha2". sync/masha/masha.cpp has the update rule; here is the problem it solves.
//
//   z = (w, d)                      the point: trained parameters w, and a perturbation d of the token embeddings, [length, embed]
//   min over w, max over |d| <= r   L(w, d) = sum over devices m of L_m / N         players "model", "adversary"; r: train.masha.radius
//   F_m(z) = (M / N) (grad_w L_m, -grad_d L_m)                                      M devices (ranks along dp), N: loss_denominator
//
// The mean of F_m over devices is the gradient of the loss over all tokens. A step is one iteration: it evaluates F_m at the look-ahead
// point and at the reference, both on the step's batch, and sends the compressed difference. At a new reference, F is averaged over the
// batches of the next train.masha.refresh_batches steps (StepInput::ahead). Without an adversary z = w. gamma is optim.learning_rate.
// Metrics: the loss is that at the look-ahead point, the gradient norm is |F| at the reference.
#include "train/steps/masha_step.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/model.h"
#include "model/needs.h"
#include "optim/options.h"
#include "parallel/pass.h"
#include "train/accumulate_gradients.h"
#include "train/job.h"

namespace cairn::train {
namespace {

constexpr double kStepLeast = 1e-20;  // residuals are scaled by the step size: at 0 they would be lost when the schedule rises again

int64_t embed_of(const model::Model& model) {
  for (const model::Parameter& parameter : model.parameters())
    if (parameter.role == model::Parameter::Role::embedding) return parameter.shape[1];
  base::fail_input("train.masha.adversary = embedding: this model has no token embeddings: use none");
}

// The loss of this rank's share as a function of one flat point: the trained parameters, then the perturbation.
class ModelProblem final : public sync::VariationalProblem {
 public:
  ModelProblem(Engine& engine, const MashaParts& parts)
      : engine_(engine),
        devices_(parts.devices.size()),
        length_(parts.perturbed_length),
        embed_(length_ > 0 ? embed_of(*engine.model) : 0),
        adversary_rate_(parts.adversary_rate) {
    for (const mesh::NamedTensor& one : engine.trained.values) weights_ += one.tensor.numel();
  }

  int64_t weights() const { return weights_; }
  int64_t elements() const override { return weights_ + length_ * embed_; }
  std::vector<sync::Player> players() const override {
    std::vector<sync::Player> players{{"model", 0, weights_}};
    if (length_ > 0) players.push_back({"adversary", weights_, elements(), true, adversary_rate_});
    return players;
  }
  bool stochastic() const override { return true; }

  // Part 0 of an iteration is the step's batch; part k is the batch of the k-th step after it.
  void gradients(const at::Tensor& point, const sync::BatchKey& key, const at::Tensor& into) override {
    put(point);
    if (key.part > 0) {
      look(point, input_->ahead(key.part), key.part, into);
      return;
    }
    const model::Losses losses =
        look(point, {.batch = input_->batch, .loss_denominator = input_->loss_denominator, .max_local_samples = input_->max_local_samples},
             0, into);
    if (!seen_.sum.defined()) seen_ = losses;  // the solver evaluates the look-ahead point first, then the reference
  }

  // Sets the step that the next evaluations belong to.
  void begin(const StepInput& input) { input_ = &input, seen_ = {}; }
  const model::Losses& seen() const { return seen_; }  // the losses at the look-ahead point

  // Copies the point into the model's parameters (put), or the parameters into the point (take).
  void put(const at::Tensor& point) const {
    each([&](const at::Tensor& kept, int64_t at) {
      mesh::before_write(engine_.trained.barrier, kept);
      kept.copy_(point.narrow(0, at, kept.numel()).view(kept.sizes()));
    });
    engine_.store->updated();
  }
  void take(const at::Tensor& point) const {
    each([&](const at::Tensor& kept, int64_t at) { point.narrow(0, at, kept.numel()).copy_(kept.view({-1})); });
  }

  // Views of a flat tensor over the point, by parameter. `model`: with those of the model's parameters.
  mesh::NamedTensors by_parameter(const std::string& what, const at::Tensor& flat, bool model = true) const {
    mesh::NamedTensors all;
    int64_t next = 0;
    for (const mesh::NamedTensor& one : engine_.trained.values) {
      if (model) all.push_back({what + "." + one.name, flat.narrow(0, next, one.tensor.numel()).view(one.tensor.sizes())});
      next += one.tensor.numel();
    }
    if (length_ > 0) all.push_back({what + ".perturbation", perturbation(flat)});
    return all;
  }

 private:
  at::Tensor perturbation(const at::Tensor& flat) const { return flat.narrow(0, weights_, length_ * embed_).view({length_, embed_}); }

  void each(const std::function<void(const at::Tensor& kept, int64_t at)>& use) const {
    int64_t next = 0;
    for (const mesh::NamedTensor& one : engine_.trained.values) use(one.tensor, std::exchange(next, next + one.tensor.numel()));
  }

  model::Losses look(const at::Tensor& point, BatchShare portion, int64_t ahead, const at::Tensor& into) {
    const auto traced = engine_.trace->span("look", "forward");
    mesh::Batch whole = std::move(portion.batch);
    if (length_ > 0) whole.fields["perturbation"] = {perturbation(point), mesh::Field::Shape::whole};
    // With M / N as weight, the mean over devices is the gradient of the loss over all their tokens.
    const double weight = static_cast<double>(devices_) / static_cast<double>(portion.loss_denominator);
    TrainingPasses all = training_passes(engine_, whole, portion.max_local_samples, weight, input_->step + ahead);
    model::Values fields;
    for (parallel::Pass& pass : all.passes) pass.field_gradients = &fields;
    model::Losses sum{.sum = at::zeros({}, at::kDouble)};
    accumulate_gradients(
        engine_, all, [](int64_t) {},
        [&](std::span<const parallel::Pass> passes) {
          for (const parallel::Pass& pass : passes) {
            const model::Losses losses = parallel::execute(pass);
            sum.sum = sum.sum + losses.sum;
            if (losses.measures.defined()) sum.measures = sum.measures.defined() ? sum.measures + losses.measures : losses.measures;
          }
          return std::vector<at::Tensor>{};
        });
    int64_t next = 0;
    for (const mesh::NamedTensor& one : engine_.trained.gradients) {
      into.narrow(0, next, one.tensor.numel()).copy_(one.tensor.view({-1}));
      next += one.tensor.numel();
    }
    if (length_ == 0) return sum;
    CAIRN_CHECK(fields.has("perturbation") || all.with_samples == 0, "this model's embeddings take no perturbation");
    if (all.with_samples > 0)
      perturbation(into).copy_(fields.take("perturbation"));
    else
      perturbation(into).zero_();
    return sum;
  }

  Engine& engine_;
  int64_t devices_, length_, embed_, weights_ = 0;
  double adversary_rate_;
  const StepInput* input_ = nullptr;
  model::Losses seen_;
};

class MashaStep final : public Step {
 public:
  MashaStep(Engine& engine, const MashaParts& parts)
      : plain_(make_step(in_turn(parallel::execute))),
        problem_(engine, parts),
        masha_(parts.options, setting(engine, parts), at::zeros({problem_.elements()})) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return plain_->evaluate(engine, batch); }

  StepOutput run(Engine& engine, const StepInput& input) override {
    problem_.begin(input);
    if (!std::exchange(begun_, true)) problem_.take(of_masha("point"));
    masha_.set_step(std::max(input.learning_rate, kStepLeast));
    facts_ = masha_.iterate();
    const auto traced = engine.trace->span("update", "optimizer");
    problem_.put(masha_.point());
    return {.loss_sum = problem_.seen().sum, .gradient_norm = at::full({}, facts_.residual), .measures = problem_.seen().measures};
  }

  mesh::NamedTensors state() override {
    // The model's part of the point is in the snapshot already, as the model.
    mesh::NamedTensors all = problem_.by_parameter("point", of_masha("point"), /*model=*/false);
    for (const mesh::NamedTensor& one : masha_.state()) {
      const std::string what = one.name.substr(one.name.find('.') + 1);
      if (what == "reference" || what == "mean" || what == "squares")
        for (mesh::NamedTensor& part : problem_.by_parameter(what, one.tensor)) all.push_back(std::move(part));
      if (what == "counters" || what == "step") all.push_back({what, one.tensor});
    }
    return all;
  }

  mesh::NamedTensors rank_state() override {
    mesh::NamedTensors all;
    for (const mesh::NamedTensor& one : masha_.state())
      if (one.name.ends_with("owed")) all.push_back({one.name.substr(one.name.rfind('.') + 1), one.tensor});
    return all;
  }

  sync::StepMetrics metrics() override {
    sync::StepMetrics notes{{"masha_step", facts_.step},
                            {"masha_refreshed", facts_.refreshed ? 1 : 0},
                            {"masha_difference", facts_.difference},
                            {"masha_compression_error", facts_.error_ratio}};
    if (facts_.player_residuals.size() > 1) notes.push_back({"masha_adversary_norm", facts_.player_residuals[1]});
    return notes;
  }

 private:
  sync::Masha::Setting setting(const Engine& engine, const MashaParts& parts) {
    sync::Masha::Setting setting{problem_, parts.devices, base::Random(parts.seed), {}, /*later=*/true, engine.trained.barrier};
    if (parts.perturbed_length > 0)
      setting.prox = [from = problem_.weights(), radius = parts.radius](const at::Tensor& x, double) {
        x.slice(0, from).clamp_(-radius, radius);
      };
    return setting;
  }

  at::Tensor of_masha(const std::string& name) {
    for (const mesh::NamedTensor& one : masha_.state())
      if (one.name == "masha." + name) return one.tensor;
    CAIRN_CHECK(false, "MASHA keeps no {}", name);
  }

  std::unique_ptr<Step> plain_;
  ModelProblem problem_;
  sync::Masha masha_;
  sync::MashaFacts facts_;
  bool begun_ = false;
};

std::unique_ptr<Step> make_masha1(const StepContext& context);
std::unique_ptr<Step> make_masha2(const StepContext& context);

// masha1 sends random elements, masha2 the largest.
bool compresses_at_random(const Settings& settings) { return step_method(settings).make == make_masha1; }
bool is_masha(const Settings& settings) { return compresses_at_random(settings) || step_method(settings).make == make_masha2; }

// Refuses optimizer keys that MASHA would ignore. A resolved recipe has all keys, so only a value other than the default is refused.
void refuse_optimizer_keys(const Settings& settings, const std::string& chosen) {
  const std::vector<std::string> used{"learning_rate", "schedule", "warmup_steps", "min_lr_ratio", "decay_share", "decay_shape"};
  const auto schema = optim::optim_schema();
  const std::vector<base::Setting> given = schema.values_of(settings.optim), plain = schema.values_of({});
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& key = schema.section().entries[i].key;
    if (given[i] != plain[i] && std::find(used.begin(), used.end(), key) == used.end())
      base::fail_input(
          "{}: optim.{} = {}: MASHA is the update rule itself; of optim only the learning rate and its schedule count: leave it out{}",
          chosen, key, base::to_toml(given[i]), key == "kind" || key == "beta2" ? ", or set train.masha.precondition = \"adam\"" : "");
  }
}

std::unique_ptr<Step> make_masha(const StepContext& context) {
  Job& job = context.job;
  comm::Group& devices = context.world.group(job.config.plan.mesh.peers(context.world.rank(), "dp"));
  return make_masha_step(job.engine, masha_parts(job.config.settings, devices, job.data.length));
}
std::unique_ptr<Step> make_masha1(const StepContext& context) { return make_masha(context); }
std::unique_ptr<Step> make_masha2(const StepContext& context) { return make_masha(context); }

void check_masha(const Settings& settings, const parallel::Plan&) {
  const MashaStepOptions& keys = settings.step_options<MashaStepOptions>();
  const std::string chosen = "train.method = " + settings.train.method;
  if (!is_masha(settings)) {
    if (keys.adversary != Adversary::none)
      base::fail_input("train.masha.adversary = {}: {} has no adversary: use masha1 or masha2",
                       base::enum_name(kAdversaryNames, keys.adversary), chosen);
    return;
  }
  if (!compresses_at_random(settings) && keys.indices == MashaIndices::common)
    base::fail_input("{}: train.masha.indices = common: which elements are the largest differs by rank: use masha1, or leave it out",
                     chosen);
  for (const auto& [key, density] : {std::pair("density", keys.density), std::pair("down_density", keys.down_density)})
    if (density == 0) base::fail_input("{}: train.masha.{} = 0: nothing would be sent: must be above 0 and at most 1", chosen, key);
  if (keys.indices == MashaIndices::common && keys.down_density < 1)
    base::fail_input("{}: train.masha.down_density = {} with indices = common: all ranks have the mean already: leave it out", chosen,
                     keys.down_density);
  if (keys.adversary == Adversary::embedding && !model::needs_of(settings.model.kind).token_embedding)
    base::fail_input("{}: train.masha.adversary = embedding: this model has no token embeddings: use none", chosen);
  refuse_optimizer_keys(settings, chosen);
}

StepMethod masha_method(const char* name, const char* help, std::unique_ptr<Step> (*make)(const StepContext&)) {
  constexpr std::string_view kOneRank = "a device of MASHA is one rank with a whole model so far: use mesh.dp";
  return {.name = name,
          .help = help,
          .needs = {.optimizer = false,
                    .gpu = false,
                    .announces_writes = true,
                    .limits = own_passes_limits(
                        {{Feature::zero, "every rank keeps the whole reference and its residual: leave it out"},
                         {Feature::tp, kOneRank},
                         {Feature::cp, kOneRank},
                         {Feature::pp, kOneRank},
                         {Feature::ep, kOneRank},
                         {Feature::mesh_island, kOneRank},
                         {Feature::remote_islands, "ranks of separate worlds share no steps: use mesh.dp in one world"},
                         {Feature::dp_rule, "MASHA is the sync rule of its ranks: leave it out"},
                         {Feature::running_statistics, "statistics would be of points that are only evaluated: set it to false"},
                         {Feature::bf16_parameters, "differences between points would be lost in rounding: keep parameters in fp32"},
                         {Feature::recovery, "the trainer cannot take such a step back: use stop"}})},
          .make = make,
          .options = StepOptions::from(masha_schema),
          .check = check_masha};
}

}  // namespace

base::Schema<MashaStepOptions> masha_schema() {
  using O = MashaStepOptions;
  return {
      "train.masha",
      "MASHA: extragradient with compressed differences instead of gradients (train.method = \"masha1\": random elements, scaled up; "
      "\"masha2\": the largest elements, with error feedback). It minimises the loss, or solves a saddle point against an adversary. "
      "optim.learning_rate is its step size.",
      {{"density", &O::density, "Fraction of the elements that a rank sends in a step. 1: all.", base::between(0, 1)},
       {"down_density", &O::down_density, "Fraction of the elements of the mean that are sent back. 1: all.", base::between(0, 1)},
       {"indices", &O::indices, "For masha1: each rank draws its own elements (independent), or all ranks send the same ones (common).",
        kMashaIndicesNames},
       {"refresh", &O::refresh,
        "Probability that the reference moves to the newest weights after a step, which costs an uncompressed all-reduce. 0: the value of "
        "density.",
        base::between(0, 1)},
       {"refresh_batches", &O::refresh_batches,
        "Batches, those of the next steps, over which the gradient at a new reference is averaged. With precondition = adam use 1: more "
        "batches make its scales too small.",
        base::at_least(1)},
       {"precondition", &O::precondition,
        "adam: scale elements by a moving mean of their squared gradients at references (a heuristic, for transformers). none: no scaling.",
        kPreconditionNames},
       {"halve_above", &O::halve_above,
        "Halve the step size if the gradient norm grows by more than this factor from one reference to the next. 0: never.",
        base::at_least(0)},
       {"adversary", &O::adversary,
        "The player that maximises the loss. embedding: a perturbation of the token embeddings, one vector for each position, the same for "
        "all samples. none: no adversary.",
        kAdversaryNames},
       {"radius", &O::radius, "The largest absolute value of an element of the perturbation.", base::more_than(0)},
       {"adversary_rate", &O::adversary_rate, "The adversary's step size, divided by the model's.", base::more_than(0)}}};
}

StepMethod masha1_method() { return masha_method("masha1", "compressed differences, random elements: train.masha", make_masha1); }
StepMethod masha2_method() {
  return masha_method("masha2", "the same with the largest elements and error feedback: train.masha", make_masha2);
}

MashaParts masha_parts(const Settings& settings, comm::Group& devices, int64_t length) {
  const MashaStepOptions& keys = settings.step_options<MashaStepOptions>();
  MashaParts parts{.options = {}, .seed = static_cast<uint64_t>(settings.train.seed), .devices = devices};
  const std::string compressor = compresses_at_random(settings) ? "randk" : "topk";
  parts.options.kind = settings.train.method;
  parts.options.step = std::max(settings.optim.learning_rate, kStepLeast);
  parts.options.up = {
      .kind = keys.density < 1 ? compressor : "none", .density = keys.density, .common = keys.indices == MashaIndices::common};
  parts.options.down = {.kind = keys.down_density < 1 ? compressor : "none", .density = keys.down_density};
  parts.options.refresh = keys.refresh;
  parts.options.refresh_batches = keys.refresh_batches;
  parts.options.adam = keys.precondition == Precondition::adam;
  parts.options.halve_above = keys.halve_above;
  if (keys.adversary != Adversary::embedding) return parts;
  parts.perturbed_length = length;
  parts.radius = keys.radius;
  parts.adversary_rate = keys.adversary_rate;
  return parts;
}

std::unique_ptr<Step> make_masha_step(Engine& engine, MashaParts parts) { return std::make_unique<MashaStep>(engine, parts); }

}  // namespace cairn::train
