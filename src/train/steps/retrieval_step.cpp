#include "train/steps/retrieval_step.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/retrieval/dataset.h"
#include "kernels/aten.h"
#include "model/losses/retrieval.h"
#include "parallel/pass.h"
#include "train/build/batches.h"
#include "train/encoder.h"
#include "train/job.h"
#include "train/steps/passage_teacher.h"
#include "train/steps/scores_ahead.h"
#include "train/steps/whole_batch.h"

namespace cairn::train {
namespace {

model::RetrievalLossOptions loss_of(const data::RetrievalOptions& o) {
  using In = data::InBatchLoss;
  using Out = model::PassageLoss;
  return {.pair_weight = o.pair_weight,
          .in_batch_weight = o.in_batch_weight,
          .in_batch_loss = o.in_batch_loss == In::margin_mse ? Out::margin_mse
                           : o.in_batch_loss == In::kl_list  ? Out::kl_list
                                                             : Out::labels};
}

bool asks_teacher(const data::RetrievalOptions& o) { return o.in_batch_weight > 0 && o.in_batch_loss != data::InBatchLoss::labels; }

// The ranks whose samples belong to one batch of an island, in the order of the samples.
comm::Group* batch_group(const StepContext& context) {
  comm::Group& group = context.world.group(context.job.config.plan.mesh.peers_along(context.world.rank(), {"dp", "shard", "ep"}));
  return group.size() > 1 ? &group : nullptr;
}

// The teacher's scores of this rank's queries for all passages of a batch: the right ones, then the wrong ones.
class BatchScores {
 public:
  BatchScores(const Job& job, const comm::Group* group, PassageScores score)
      : job_(job),
        data_(*data::retrieval_samples(job.data.samples.get())),
        first_rank_(job.shares.data_rank - (group ? group->rank() : 0)),
        ranks_(group ? group->size() : 1),
        score_(std::move(score)),
        threads_(at::get_num_threads()) {}

  at::Tensor operator()(int64_t batch) const {
    at::set_num_threads(threads_);
    const std::vector<int64_t> ids = job_.sampler->draw(batch).ids;
    const auto all = static_cast<int64_t>(ids.size());
    const data::BatchRange own = job_.shares.own(all), begin = job_.shares.samples_of(all, first_rank_),
                           end = job_.shares.samples_of(all, first_rank_ + ranks_ - 1);
    std::vector<int64_t> queries, right, wrong;
    for (int64_t i = begin.first; i < end.first + end.count; ++i) {
      const data::TextPair& pair = data_.pair(ids[static_cast<size_t>(i)]);
      if (i >= own.first && i < own.first + own.count) queries.push_back(pair.query);
      right.push_back(pair.right);
      wrong.push_back(pair.wrong);
    }
    right.insert(right.end(), wrong.begin(), wrong.end());
    const at::Tensor scores = score_(queries, right);
    CAIRN_CHECK(
        scores.dim() == 2 && scores.size(0) == static_cast<int64_t>(queries.size()) && scores.size(1) == static_cast<int64_t>(right.size()),
        "a teacher's scores of {} queries and {} passages have another size", queries.size(), right.size());
    return scores;
  }

 private:
  const Job& job_;
  const data::RetrievalDataset& data_;
  int first_rank_, ranks_;
  PassageScores score_;
  int threads_;
};

class RetrievalStep final : public Step {
 public:
  // `scores` null: no teacher is asked.
  RetrievalStep(const Job& job, std::unique_ptr<Step> inner, std::unique_ptr<ScoresAhead> scores)
      : job_(job), inner_(std::move(inner)), scores_(std::move(scores)) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return inner_->evaluate(engine, batch); }
  mesh::NamedTensors state() override { return inner_->state(); }
  mesh::NamedTensors rank_state() override { return inner_->rank_state(); }

  sync::StepMetrics metrics() override {
    sync::StepMetrics metrics = inner_->metrics();
    if (scores_) metrics.emplace_back("teacher_wait_seconds", scores_->waited_s());
    return metrics;
  }

  StepOutput run(Engine& engine, const StepInput& input) override {
    if (!scores_) return inner_->run(engine, input);
    mesh::Batch batch = input.batch;
    const at::Tensor scores = scores_->take(batch_index(job_, input.step).batch());
    batch.fields["teacher_scores"] = {scores.to(batch.ids.device()), mesh::Field::Shape::per_sample};
    return inner_->run(engine, {.step = input.step,
                                .batch = batch,
                                .tokens = input.tokens,
                                .loss_denominator = input.loss_denominator,
                                .learning_rate = input.learning_rate,
                                .update = input.update,
                                .max_local_samples = input.max_local_samples,
                                .keeps_sample_losses = input.keeps_sample_losses,
                                .ahead = input.ahead,
                                .approve = input.approve});
  }

 private:
  const Job& job_;
  std::unique_ptr<Step> inner_;
  std::unique_ptr<ScoresAhead> scores_;
};

std::unique_ptr<ScoresAhead> teacher_of(const StepContext& context, const comm::Group* group) {
  Job& job = context.job;
  const data::RetrievalOptions& o = job.config.settings.data.retrieval;
  if (!asks_teacher(o)) return nullptr;
  PassageScores score = job.passage_scores;
  if (!score && o.teacher.empty())
    base::fail_input(
        "retrieval.in_batch_weight = {:g}: no teacher scores the passages of a batch. Set retrieval.teacher, or in_batch_loss = \"labels\" "
        "to take all passages of other queries for wrong.",
        o.in_batch_weight);
  if (!score)
    score = open_teacher(o.teacher, data::retrieval_samples(job.data.samples.get())->texts(), o, *job.data.tokenizer, job.config.device,
                         context.world.log());
  return std::make_unique<ScoresAhead>(BatchScores(job, group, std::move(score)), o.teacher_ahead, std::numeric_limits<int64_t>::max(),
                                       std::chrono::nanoseconds(static_cast<int64_t>(o.teacher_timeout_s * 1e9)));
}

std::unique_ptr<model::Objective> retrieval_objective(const Settings& settings) {
  return model::make_retrieval(loss_of(settings.data.retrieval));
}

std::unique_ptr<Step> make_retrieval_step(const StepContext& context) {
  Job& job = context.job;
  const Settings& s = job.config.settings;
  job.engine.objective = retrieval_objective(s);
  job.carried[kRetrievalFile] = format_retrieval(s.data.retrieval);
  comm::Group* const group = batch_group(context);
  std::shared_ptr<const model::Objective> alone = model::make_retrieval_pairs(loss_of(s.data.retrieval));
  return std::make_unique<RetrievalStep>(job, make_step(whole_batch_execution(group, std::move(alone)), s.train.check_every),
                                         teacher_of(context, group));
}

void check_retrieval_step(const Settings& settings, const parallel::Plan&) {
  if (!settings.data.needs().retrieval) return;
  const data::RetrievalOptions& o = settings.data.retrieval;
  if (o.pair_weight == 0 && o.in_batch_weight == 0)
    base::fail_input("retrieval.pair_weight = 0: retrieval.in_batch_weight is 0 too, and nothing would be learned. Set one of them.");
  if (o.in_batch_weight > 0 && settings.train.global_batch < 2)
    base::fail_input("train.global_batch = {}: there are no passages of other queries. Use more, or retrieval.in_batch_weight = 0.",
                     settings.train.global_batch);
  if (!o.teacher.empty() && !asks_teacher(o))
    base::fail_input("retrieval.teacher = {}: nothing asks it with retrieval.in_batch_weight = {:g} and in_batch_loss = {}. Leave it out.",
                     o.teacher, o.in_batch_weight, base::enum_name(data::kInBatchLossNames, o.in_batch_loss));
}

// Forward over each micro-batch, then forward and backward; one micro-batch needs the forward once.
double retrieval_forward_passes(const Settings&) { return 4; }

constexpr std::string_view kWholeBatch = "its loss compares all queries of a batch with all passages: use mesh.dp, mesh.tp or memory.zero";

}  // namespace

StepMethod retrieval_method() {
  return {.name = "retrieval",
          .help = "queries with right and wrong passages, compared over the whole batch",
          .needs = {.retrieval = true,
                    .announces_writes = true,
                    .limits = {{Feature::pp, kWholeBatch},
                               {Feature::cp, kWholeBatch},
                               {Feature::cuda_graph, "a loss over the whole batch gathers vectors between two passes: leave it out"},
                               {Feature::step_plans, "each text of a sample is short and of a length of its own: use context.plan = fixed"},
                               {Feature::fp8, "the vectors of the first pass are computed in full precision: leave it out"},
                               {Feature::dropout, "the second pass over a micro-batch would drop other elements: leave it out"},
                               {Feature::loss_chunks, "an encoder has no logits: leave it out"},
                               {Feature::sequences, "a sample is three texts: leave data.packing out"},
                               {Feature::sample_losses, "losses of pairs depend on their batch: use data.sampler = tas or shuffled"},
                               {Feature::remote_islands, "queries are compared within one world: use mesh.dp"}},
                    .forward_passes = retrieval_forward_passes},
          .make = make_retrieval_step,
          .check = check_retrieval_step,
          .objective = retrieval_objective};
}

}  // namespace cairn::train
