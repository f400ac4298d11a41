// Gradient coding over the ranks along dp: train.method = "coded". sync/coding/gradient_code.h has the codes. The batch has n parts, one
// for each rank, and rank i computes the s + 1 parts that the code gives it, at the same weights:
//
//   l_i = sum over its parts j of b_ij g_j        accumulated in one buffer: b_ij is the weight of the pass
//   g   = sum over live ranks of a_i l_i          exact for any n - s live ranks R; a solves a' B_R = 1'
//
// Which ranks are live is settled by messages as gradients become ready (live_set.h). A rank that is not ready then gives up between two
// blocks, counts as zero, and takes part in the sum: so g is bitwise identical on all ranks, and all apply the same update. The loss of a
// part is reported by the first live rank that computed it.
#include "train/steps/coded_step.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/memory_scope.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "optim/clip.h"
#include "train/build/batches.h"
#include "train/job.h"
#include "train/steps/code_gradients.h"
#include "train/steps/live_set.h"

namespace cairn::train {
namespace {

constexpr const char* kName = "coded";

sync::GradientCode code_of(const Settings& settings, int ranks) {
  const auto& keys = settings.step_options<CodedOptions>();
  return {keys.code, ranks, static_cast<int>(keys.stragglers), static_cast<uint64_t>(settings.train.seed), "train.coded.stragglers"};
}

class CodedStep final : public Step {
 public:
  CodedStep(const Job& job, comm::World& world)
      : job_(job),
        settings_(job.config.settings.step_options<CodedOptions>()),
        shares_(job.shares),
        code_(code_of(job.config.settings, job.shares.data_ranks)),
        live_(world, *job.engine.step_group, code_, settings_.mu),
        chain_({settings_.slow_enter, settings_.slow_leave, settings_.slow_s}, static_cast<uint64_t>(job.config.settings.train.seed),
               job.shares.data_rank),
        plain_(make_step(in_turn(parallel::execute))) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return plain_->evaluate(engine, batch); }

  StepOutput run(Engine& engine, const StepInput& input) override {
    sync::StepFacts facts{.step = input.step, .tokens = input.tokens, .learning_rate = input.learning_rate};
    live_.begin(input.step);
    if (chain_.next()) live_.pause(std::chrono::nanoseconds(static_cast<int64_t>(settings_.slow_s * 1e9)));
    const std::optional<std::vector<PartSums>> sums = own_gradient(engine, input);
    if (sums) live_.ready();
    {
      const auto traced = engine.trace->span("wait for live ranks", "sync");
      decode(engine, live_.wait().weights[static_cast<size_t>(shares_.data_rank)]);
    }
    for (size_t i = engine.trained.gradients.size(); i-- > 0;) engine.sync->gradient_ready(static_cast<int64_t>(i));
    {
      const auto traced = engine.trace->span("wait for gradients", "sync");
      engine.sync->after_backward(facts).wait();
    }
    if (engine.before_update) engine.before_update();
    const optim::Clip clip = optim::clip(engine.store->sum_of_squares(), 1.0, engine.clip_norm);
    const PartSums reported = sums_of_own_parts(sums, clip.norm);
    facts.skipped = input.approve && !input.approve(reported.loss_sum, clip.norm);
    if (!facts.skipped) update(engine, input, clip.factor);
    if (!facts.skipped && engine.after_update) engine.after_update();
    engine.sync->after_step(facts).wait();
    engine.store->updated();
    return {.loss_sum = reported.loss_sum, .gradient_norm = clip.norm, .measures = reported.measures, .skipped = facts.skipped};
  }

  sync::StepMetrics metrics() override {
    const auto live = static_cast<double>(std::count(live_.live().begin(), live_.live().end(), 1));
    return {{"coded_live", live}, {"coded_late", static_cast<double>(code_.workers()) - live}, {"coded_samples", samples_}};
  }

 private:
  // This rank's coded gradient, complete on the device; nothing if the step was closed before.
  std::optional<std::vector<PartSums>> own_gradient(Engine& engine, const StepInput& input) {
    std::vector<WeightedPart> parts;
    const std::vector<int>& held = code_.parts(shares_.data_rank);
    // The batch has the samples of those parts, one part after the other (SampleShares::held).
    const auto samples = static_cast<int64_t>(batch_ids(job_, input.step).size());
    int64_t first = 0;
    for (size_t k = 0; k < held.size(); ++k) {
      const int64_t count = shares_.samples_of(samples, held[k]).count;
      parts.push_back({mesh::slice(input.batch, first, first + count),
                       code_.coefficients(shares_.data_rank)[k] / static_cast<double>(input.loss_denominator)});
      first += count;
    }
    samples_ = 0;
    if (live_.closed()) return std::nullopt;
    auto sums = code_gradients(engine, parts, input.step, [this] { return live_.closed(); });
    if (!sums) return sums;
    samples_ = static_cast<double>(first);
    if (!engine.trained.gradients.empty()) (void)engine.trained.gradients.front().tensor.view({-1})[0].item();  // waits for the device
    return sums;
  }

  static void decode(const Engine& engine, double weight) {
    for (const mesh::NamedTensor& gradient : engine.trained.gradients) {
      if (weight == 0) gradient.tensor.zero_();  // and not a product: the gradient of a rank that gave up is anything
      if (weight != 0 && weight != 1) gradient.tensor.mul_(weight);
    }
  }

  // The sums of the parts that no live rank before this one computed.
  PartSums sums_of_own_parts(const std::optional<std::vector<PartSums>>& sums, const at::Tensor& like) const {
    PartSums reported;
    const std::vector<char>& live = live_.live();
    for (size_t k = 0; sums && live[static_cast<size_t>(shares_.data_rank)] && k < sums->size(); ++k) {
      const int part = code_.parts(shares_.data_rank)[k];
      bool reported_before = false;
      for (int rank = 0; rank < shares_.data_rank; ++rank) {
        const std::vector<int>& theirs = code_.parts(rank);
        reported_before |= live[static_cast<size_t>(rank)] && std::find(theirs.begin(), theirs.end(), part) != theirs.end();
      }
      if (reported_before) continue;
      const PartSums& own = (*sums)[k];
      if (own.loss_sum.defined()) reported.loss_sum = reported.loss_sum.defined() ? reported.loss_sum + own.loss_sum : own.loss_sum;
      if (own.measures.defined()) reported.measures = reported.measures.defined() ? reported.measures + own.measures : own.measures;
    }
    if (!reported.loss_sum.defined()) reported.loss_sum = at::zeros({}, like.options());
    return reported;
  }

  static void update(Engine& engine, const StepInput& input, const at::Tensor& factor) {
    const auto traced = engine.trace->span("update", "optimizer");
    const base::MemoryScope scope("update");
    optim::UpdateFacts facts{.step = input.update, .learning_rate = input.learning_rate};
    facts.gradient_factor = &factor;
    engine.optimizer->update_several(0, static_cast<int64_t>(engine.trained.values.size()), facts);
  }

  const Job& job_;
  const CodedOptions settings_;
  const data::SampleShares shares_;
  const sync::GradientCode code_;
  LiveSet live_;
  sync::StragglerChain chain_;
  const std::unique_ptr<Step> plain_;
  double samples_ = 0;  // computed by this rank in the last step
};

std::unique_ptr<Step> make_coded(const StepContext& context) {
  if (context.job.engine.objective->separates() == model::Objective::Separates::nothing)
    base::fail_input(
        "train.method = coded: the loss of this objective is no sum over samples, so gradients of parts do not add up: use "
        "train.method = gradient");
  return std::make_unique<CodedStep>(context.job, context.world);
}

std::vector<int> coded_shares(const Settings& settings, int rank, int ranks) { return code_of(settings, ranks).parts(rank); }

double coded_forward_passes(const Settings& settings) {
  return 3 * (1 + static_cast<double>(settings.step_options<CodedOptions>().stragglers));
}

void check_coded(const Settings& settings, const parallel::Plan& plan) {
  if (settings.train.method == kName) code_of(settings, plan.mesh.extent("dp"));
}

}  // namespace

StepMethod coded_method() {
  constexpr const char* kWhole = "a rank that gives up must leave no other rank waiting inside a pass: use mesh.dp alone";
  constexpr const char* kSharded =
      "gradients are sharded while backward runs, before it is known whose count: use memory.zero = 0, or train.method = gradient";
  constexpr const char* kApart = "the code needs one batch at the same weights on all ranks: use mesh.dp alone, or train.method = gradient";
  return {.name = kName,
          .help = "gradient coding: exact gradients although some ranks along dp are late: train.coded",
          .needs = {.limits = {{Feature::zero3, kSharded},
                               {Feature::zero, kSharded},
                               {Feature::remote_islands, kApart},
                               {Feature::local_steps, kApart},
                               {Feature::mesh_island, kApart},
                               {Feature::tp, kWhole},
                               {Feature::cp, kWhole},
                               {Feature::pp, kWhole},
                               {Feature::ep, kWhole},
                               {Feature::dp_rule, "decoding is a plain sum of weighted gradients: use sync.dp.kind = all_reduce"},
                               {Feature::bf16_gradients, "decoding would round them again: use train.gradients = fp32"},
                               {Feature::bf16_parameters, "ranks round each update at random: use train.parameters = fp32"},
                               {Feature::fp8, "its scales would follow the samples of each rank: leave it out"},
                               {Feature::cuda_graph, "a captured pass cannot be given up: leave it out"},
                               {Feature::check_every, "ranks that give up have no gradient to compare: leave it out"},
                               {Feature::sync_check, "a rank waits for its device before it says that it is ready: leave it out"},
                               {Feature::running_statistics,
                                "samples are computed several times, by some ranks in vain: set model.batch_norm to false"},
                               {Feature::pairs, "pairs of answers are trained by plain gradients: leave train.method out"},
                               {Feature::rollouts, "answers with advantages are trained by plain gradients: leave train.method out"},
                               {Feature::retrieval, "encoders of texts are trained by plain gradients: leave train.method out"}},
                    .shares = coded_shares,
                    .forward_passes = coded_forward_passes},
          .make = make_coded,
          .options = StepOptions::from(coded_schema),
          .check = check_coded};
}

base::Schema<CodedOptions> coded_schema() {
  using O = CodedOptions;
  return {
      "train.coded",
      "Gradient coding (train.method = \"coded\"): every rank computes stragglers + 1 shares of the batch, and the gradient is exact "
      "although so many ranks are late.",
      {{"stragglers", &O::stragglers, "How many ranks along dp may be late. The work of a rank grows (stragglers + 1) times.",
        base::at_least(0)},
       {"code", &O::code,
        "repetition rounds nothing and needs stragglers + 1 to divide the ranks; random works with any number; auto: the first where "
        "possible.",
        sync::kCodeKindNames},
       {"mu", &O::mu, "A step waits for late ranks until (1 + mu) times the time of its first rank; 0: until enough are ready, no longer.",
        base::at_least(0)},
       {"slow_enter", &O::slow_enter, "Makes stragglers, for trials: the probability that a rank becomes slow in a step. 0: none is made.",
        base::between(0, 1)},
       {"slow_leave", &O::slow_leave, "The probability that a slow rank becomes well again in a step.", base::between(0, 1)},
       {"slow_s", &O::slow_s, "How many seconds longer a slow rank takes, unless it can give up before.", base::at_least(0)}}};
}

}  // namespace cairn::train
