#include "federate/training_streams.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/files/disk.h"
#include "comm/net/transport.h"
#include "data/dataset.h"
#include "kernels/aten.h"
#include "optim/clip.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/evaluate.h"
#include "train/features.h"
#include "train/state/snapshot_writer.h"
#include "train/step_methods.h"
#include "train/steps/code_gradients.h"

namespace cairn::federate {
namespace {

constexpr train::Limit kLimits[] = {
    {train::Feature::bf16_gradients, "decoding would round them again: use train.gradients = fp32"},
    {train::Feature::cuda_graph, "a captured pass cannot be given up: leave it out"},
    {train::Feature::check_every, "workers that give up have no gradient to compare: leave it out"},
    {train::Feature::recovery, "gradients are decoded rounds after they began: use train.on_bad_step = stop"},
    {train::Feature::sync_check, "workers wait for their device: leave it out"},
    {train::Feature::running_statistics, "samples are computed several times, by some workers in vain: set model.batch_norm to false"},
    {train::Feature::pairs, "pairs of answers are trained by plain gradients: use cairn train"},
};

void check(const train::Job& job) {
  const train::Settings& s = job.config.settings;
  const train::StepMethod& method = train::step_method(s);
  if (&method != &train::step_methods().front())
    base::fail_input("train.method = {}: coded training makes the step itself: leave it out", method.name);
  train::refuse_limits("study.kind = coded", kLimits, train::used_features(s, job.config.plan));
  if (job.engine.objective->separates() == model::Objective::Separates::nothing)
    base::fail_input(
        "study.kind = coded: the loss of this objective is no sum over samples, so gradients of parts do not add up: use cairn train");
}

int64_t denominator(const train::Job& job, int64_t step) {
  const data::BatchCounts counts = job.batches->counts(train::batch_index(job, step));
  const bool by_token = job.engine.objective->separates() == model::Objective::Separates::tokens;
  return std::max<int64_t>(by_token ? counts.step_group_tokens : counts.step_group_samples, 1);
}

std::vector<float> flat(const mesh::NamedTensors& tensors) {
  std::vector<float> all;
  for (const mesh::NamedTensor& one : tensors) {
    const at::Tensor host = one.tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    const auto* first = host.const_data_ptr<float>();
    all.insert(all.end(), first, first + host.numel());
  }
  return all;
}

void put(const mesh::NamedTensors& tensors, std::span<const float> values) {
  size_t next = 0;
  for (const mesh::NamedTensor& one : tensors) {
    const auto count = static_cast<size_t>(one.tensor.numel());
    CAIRN_CHECK(next + count <= values.size(), "{} values, and {} has {} more", values.size(), one.name, count);
    at::Tensor host = at::empty(one.tensor.sizes(), at::kFloat);
    std::memcpy(host.mutable_data_ptr<float>(), values.data() + next, count * sizeof(float));
    one.tensor.copy_(host);
    next += count;
  }
  CAIRN_CHECK(next == values.size(), "{} values for {} parameters", values.size(), next);
}

}  // namespace

TrainingJobs::TrainingJobs(const std::vector<base::Recipe>& recipes, const std::filesystem::path& out, const std::string& cache,
                           int threads)
    : alone_(comm::make_net_transport(std::move(comm::make_net_setups(1).front()))) {
  for (size_t i = 0; i < recipes.size(); ++i) {
    train::Start start{
        .out = out.empty() ? out : out / fmt::format("stream-{}", i), .cache = cache, .threads = threads, .terminal = nullptr};
    jobs_.push_back(train::build(alone_, recipes[i], start, {}));
    jobs_.back()->ahead.loader.reset();  // workers choose their samples themselves
    check(*jobs_.back());
  }
}

TrainingStreams::TrainingStreams(const TrainingJobs& jobs) : jobs_(jobs), losses_(static_cast<size_t>(jobs.size())) {}

int64_t TrainingStreams::samples(int64_t stream, int64_t step) const {
  return static_cast<int64_t>(train::batch_ids(jobs_[stream], step).size());
}

std::vector<float> TrainingStreams::weights(int64_t stream) const { return flat(jobs_[stream].engine.trained.values); }

void TrainingStreams::apply(int64_t stream, int64_t step, std::span<const float> gradient, double loss_sum) {
  train::Job& job = jobs_[stream];
  train::Engine& engine = job.engine;
  engine.store->reducer().begin(0, 0, {});  // gradients have memory from here on
  engine.store->reducer().finish();
  put(engine.trained.gradients, gradient);
  const optim::Clip clip = optim::clip(engine.store->sum_of_squares(), 1.0, engine.clip_norm);
  optim::UpdateFacts facts{.step = step, .learning_rate = job.schedule.learning_rate(job.sampler->progress(step))};
  facts.gradient_factor = &clip.factor;
  engine.optimizer->update_several(0, static_cast<int64_t>(engine.trained.values.size()), facts);
  engine.store->updated();
  job.progress.steps_done = step;
  job.progress.tokens_done += job.batches->counts(train::batch_index(job, step)).tokens;
  losses_[static_cast<size_t>(stream)].push_back(loss_sum / static_cast<double>(denominator(job, step)));
  if (!std::isfinite(losses_[static_cast<size_t>(stream)].back()))
    throw Error(Error::Kind::diverged, fmt::format("step {} of stream {}: the loss is not a number", step, stream));
}

std::vector<double> TrainingStreams::held_out() const {
  std::vector<double> losses;
  for (int64_t i = 0; i < jobs_.size(); ++i) losses.push_back(train::evaluate_held_out(jobs_[i]).loss);
  return losses;
}

void TrainingStreams::save(base::Log& log, const base::Clock& clock) const {
  for (int64_t i = 0; i < jobs_.size(); ++i) {
    train::SnapshotWriter writer(jobs_[i], log, clock, base::real_disk());
    writer.save();
    writer.finish();
    writer.rethrow_failure();
  }
}

void TrainingGradients::take_weights(int64_t stream, std::span<const float> weights) {
  put(jobs_[stream].engine.trained.values, weights);
  jobs_[stream].engine.store->updated();
}

std::optional<GradientSource::Gradient> TrainingGradients::compute(int64_t stream, int64_t step, std::span<const SampleRange> ranges,
                                                                   const std::function<bool()>& given_up) {
  train::Job& job = jobs_[stream];
  const std::vector<int64_t> ids = train::batch_ids(job, step);
  const double scale = 1.0 / static_cast<double>(denominator(job, step));
  std::vector<train::WeightedPart> parts;
  for (const SampleRange& range : ranges) {
    CAIRN_CHECK(range.first >= 0 && range.count >= 0 && range.first + range.count <= static_cast<int64_t>(ids.size()),
                "samples {} to {} of {}", range.first, range.first + range.count, ids.size());
    const auto own = std::span(ids).subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count));
    mesh::Batch batch;
    if (range.count > 0) batch = job.batches->fill(own);
    if (range.count > 0 && job.subset.weighted()) {
      batch.weights = at::empty({range.count}, at::kFloat);
      for (size_t i = 0; i < own.size(); ++i) batch.weights.mutable_data_ptr<float>()[i] = job.subset.weight(own[i]);
    }
    batch.progress = job.sampler->progress(step - 1);
    parts.push_back({mesh::to_device(batch, job.config.device), range.weight * scale});
  }
  const auto sums = train::code_gradients(job.engine, parts, step, given_up);
  if (!sums) return std::nullopt;
  Gradient found{.sum = flat(job.engine.trained.gradients)};
  for (const train::PartSums& one : *sums) found.losses.push_back(one.loss_sum.defined() ? one.loss_sum.item<double>() : 0);
  return found;
}

int64_t message_bytes_max(const TrainingJobs& jobs) {
  int64_t most = 0;
  for (int64_t i = 0; i < jobs.size(); ++i) {
    int64_t elements = 0;
    for (const mesh::NamedTensor& one : jobs[i].engine.trained.values) elements += one.tensor.numel();
    most = std::max(most, elements);
  }
  constexpr int64_t kAtLeast = 64 << 20;
  return std::max(kAtLeast,
                  (most * static_cast<int64_t>(sizeof(float)) + (1 << 16)) * 2 * (jobs.size() + 1));  // gradients of all open jobs
}

}  // namespace cairn::federate
