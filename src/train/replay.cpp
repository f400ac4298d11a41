// Replay of one step from the record of a run. The record consists of
//
//   metrics.jsonl   loss, gradient norm, batch index and checksum of the samples of every step
//   starts.jsonl    machine, ranks, threads, versions, data and recipe of every start or resume (report/run_starts.h)
//   snapshots       those that the run has kept
//
// 1. Build the job with the recipe of the start that computed the step, from the newest snapshot before the step.
// 2. Run the steps up to it on the recorded batches. A rollback shifts the batches of later steps, so the index comes from the record.
// 3. Compare loss and gradient norm bitwise. They are identical on the same machine, ranks, threads and versions; `doubts` lists what
//    is different now.
#include "train/replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/step_plan/kept_plans.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b)); }

std::string text_of_row(const base::MetricsRow& row, std::string_view name) {
  for (const auto& [key, value] : row.values)
    if (key == name && std::holds_alternative<std::string>(value)) return std::get<std::string>(value);
  return {};
}

// Tokens as text, without padding: positions outside documents, and repeated special tokens at the end.
std::string text_of_tokens(const data::Tokenizer& tokenizer, const at::Tensor& tokens, const at::Tensor& documents) {
  std::vector<int32_t> kept;
  for (int64_t i = 0; i < tokens.numel(); ++i)
    if (!documents.defined() || documents.const_data_ptr<int64_t>()[i] >= 0)
      kept.push_back(static_cast<int32_t>(tokens.const_data_ptr<int64_t>()[i]));
  while (kept.size() > 1 && kept[kept.size() - 2] == kept.back() && tokenizer.is_special(kept.back())) kept.pop_back();
  return tokenizer.decode(kept);
}

std::string text_of_sample(const Job& job, int64_t id) {
  mesh::Batch batch;
  const std::array<int64_t, 1> ids{id};
  job.data.samples->fill(ids, batch);
  if (!job.data.tokenizer) return {};
  const auto tensor = [&](const char* name) {
    const auto found = batch.fields.find(name);
    return found == batch.fields.end() ? at::Tensor() : found->second.tensor;
  };
  if (const at::Tensor tokens = tensor("tokens"); tokens.defined()) return text_of_tokens(*job.data.tokenizer, tokens, tensor("documents"));
  std::string text;
  for (const char* side : {"chosen", "rejected"})  // a preference
    if (const at::Tensor tokens = tensor(fmt::format("{}_tokens", side).c_str()); tokens.defined())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", side, text_of_tokens(*job.data.tokenizer, tokens, {}));
  return text;
}

// Makes `batch` the next one. Rollbacks of the run have shifted its batches against its steps.
void go_to_batch(Job& job, int64_t batch) {
  const int64_t passed = batch - job.progress.steps_done;
  if (passed == job.progress.batches_passed) return;
  stop_loader(job);  // its thread reads what changes below
  job.progress.batches_passed = passed;
  start_loader(job);
}

// Builds the job from the recorded recipe. If that fails in another working directory, the error names the right one: relative paths of the
// recipe begin there.
std::unique_ptr<Job> build_as_then(comm::World& world, const StepOfRecord& record, const Start& start, const data::Subset& subset) {
  try {
    return build(world, base::Recipe::parse(record.start().recipe, (record.run / "recipe.toml").string()), start, subset);
  } catch (Error& error) {
    std::error_code ignored;
    const std::string here = std::filesystem::current_path(ignored).string();
    if (error.kind() == Error::Kind::bad_input && here != record.start().folder)
      error.with(fmt::format("the run was started in {}: replay it there", record.start().folder));
    throw;
  }
}

// The reasons why the replayed numbers may differ, in words.
std::vector<std::string> doubts(const StepOfRecord& record, const RunStart& now, int64_t from) {
  std::vector<std::string> found = differences(record.start(), now);
  for (const RunStart& one : record.starts) {
    if (one.after_step <= from) continue;
    const std::string what = fmt::format("the run was resumed after step {}, whose snapshot is gone: this replay starts at step {} instead",
                                         one.after_step, from);
    const RunStart& earlier = *(std::find(record.starts.begin(), record.starts.end(), one) - 1);
    if (!differences(earlier, one).empty() || earlier.recipe != one.recipe) found.push_back(what);
  }
  return found;
}

// Steps under plans are planned as they were then: costs are measured anew in each run.
void use_kept_plans(Job& job, const StepOfRecord& record, Replayed& result) {
  if (!job.ahead.planner) return;
  std::map<int64_t, parallel::StepPlan> kept = read_kept_plans(job.config.out);
  if (std::erase_if(kept, [&](const auto& one) { return one.second.ranks != job.engine.micro_batching.pool.ranks; }) > 0)
    result.differences.push_back(fmt::format("{} has plans for other numbers of ranks: those steps are planned anew", kPlansFile));
  if (!kept.contains(record.step))
    result.differences.push_back(fmt::format("{} has no plan of step {}: it is planned anew", kPlansFile, record.step));
  stop_loader(job);
  job.ahead.planner = plan_as_kept(std::move(kept), std::move(job.ahead.planner));
  start_loader(job);
}

}  // namespace

bool Replayed::equal() const { return same_bits(loss_then, loss_now) && same_bits(norm_then, norm_now); }

StepOfRecord read_step_of_record(const std::filesystem::path& run, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_directory(run, error)) base::fail_input("{}: no such directory; give a run directory", run.string());
  if (!std::filesystem::exists(run / "recipe.toml", error))
    base::fail_input("{}: not a run directory (no recipe.toml there)", run.string());
  if (!std::filesystem::exists(run / "metrics.jsonl", error))
    base::fail_input("{}: no metrics.jsonl there: the run has made no step", run.string());
  StepOfRecord record{.run = run, .step = step, .samples = {}, .batches = {}, .starts = {}};
  int64_t last = 0;
  bool found = false;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl")) {
    if (!row.has("step")) continue;
    last = row.integer("step");
    if (last > step) continue;
    record.batches.push_back(row.has("batch") ? row.integer("batch") : last - 1);
    if (last != static_cast<int64_t>(record.batches.size()))
      throw Error(Error::Kind::corrupt_file,
                  fmt::format("{}: step {} where step {} was due", (run / "metrics.jsonl").string(), last, record.batches.size()));
    if (last < step) continue;
    found = true;
    for (const char* name : {"loss", "grad_norm"})
      if (!row.has(name)) base::fail_corrupt((run / "metrics.jsonl").string(), fmt::format("the row of step {} has no {}", step, name));
    record.loss = row.number("loss");
    record.gradient_norm = row.number("grad_norm");
    record.samples = text_of_row(row, "samples");
  }
  if (!found) base::fail_input("--step {}: {} has steps 1 to {}", step, run.string(), last);
  for (const RunStart& one : read_starts(run / kStartsFile))
    if (one.after_step < step) record.starts.push_back(one);
  if (record.starts.empty())
    base::fail_input("{}: it has no {} for step {}: an older version of Cairn made the run, without this record", run.string(), kStartsFile,
                     step);
  return record;
}

Replayed replay(comm::World& world, const StepOfRecord& record, Start start, const ReplayOptions& options) {
  start.out = record.run;
  start.resume = true;
  start.resume_step_last = record.step - 1;
  const std::unique_ptr<Job> job = build_as_then(world, record, start, options.subset);
  Replayed result{.from = job->progress.steps_done,
                  .samples = {},
                  .loss_then = record.loss,
                  .norm_then = record.gradient_norm,
                  .differences = doubts(record, this_start(*job, start, world.size()), job->progress.steps_done)};
  use_kept_plans(*job, record, result);
  while (job->progress.steps_done < record.step) {
    const int64_t step = job->progress.steps_done + 1;
    go_to_batch(*job, record.batches[static_cast<size_t>(step - 1)]);
    const TakenStep taken = take_step(*job);
    if (step == record.step) {
      // As the recorder computes it: the sum over all ranks, divided by the loss denominator.
      std::array<double, 2> sums{taken.output.loss_sum.to(at::kDouble).item<double>(), 0.0};
      job->engine.step_group->all_reduce({sums.data(), 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      result.loss_now = sums[0] / static_cast<double>(taken.loss_denominator);
      result.norm_now = taken.output.gradient_norm.to(at::kDouble).item<double>();
      result.same_samples = record.samples.empty() || record.samples == fmt::format("{:016x}", taken.samples);
    }
    if (taken.output.skipped) {
      if (job->config.settings.train.on_bad_step == OnBadStep::skip) ++job->progress.updates_skipped;
      if (job->config.settings.train.on_bad_step == OnBadStep::rollback && step < record.step)
        result.differences.push_back(fmt::format("step {} is bad now ({}), and was good then", step, job->bad_steps->fault()));
    }
    if (step == record.step)
      for (const int64_t id : batch_ids(*job, step))
        result.samples.push_back({id, job->data.samples->tokens_in(id), options.text ? text_of_sample(*job, id) : ""});
    job->progress.steps_done = step;
    if (options.on_step && world.rank() == 0) options.on_step(step, record.step);
  }
  return result;
}

}  // namespace cairn::train
