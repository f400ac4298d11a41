#include "train/report/run_recorder.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/report/run_starts.h"

namespace cairn::train {
namespace {

constexpr std::chrono::microseconds kLooksAway{500};  // how long the host handles messages between islands before it polls the GPU

Start in_step_group(Start start, const Job& job) {
  start.out = job.config.out;
  return start;
}

}  // namespace

RunRecorder::RunRecorder(comm::World& world, Job& job, const Start& start)
    : world_(world),
      job_(job),
      start_(in_step_group(start, job)),
      meter_(job.config.device, [&job] { return job.engine.sync->progress(kLooksAway); }),
      measured_(job.engine.objective->measures()) {
  result_.step = job.progress.steps_done;
  result_.held_out_loss = std::numeric_limits<double>::quiet_NaN();
  if (job.config.writes) {
    open_run_folder(start_.out, job);
    note_start(start_.out / kStartsFile, this_start(job, start_, world.size()));
    metrics_ = std::make_unique<base::Metrics>(start_.out / "metrics.jsonl");
    if (job.config.settings.log.tensorboard) tensorboard_ = std::make_unique<base::TensorBoard>(start_.out / "tensorboard");
  }
  if (start.terminal && world.rank() == 0) progress_ = std::make_unique<base::Progress>(*start.terminal, world.wall());
  startup_s_ = start.seconds_before + base::process_age();
  last_s_ = base::seconds(world.wall().now());
}

RunRecorder::~RunRecorder() = default;

bool RunRecorder::step(const StepRecord& facts, const StepOutput& output, bool wants_to_stop) {
  meter_.add(facts.step, output);
  waiting_.push_back(facts);
  const std::optional<Reading> reading = meter_.take(/*all=*/false);
  return take(reading ? &*reading : nullptr, wants_to_stop);
}

// One small all-reduce per step carries all scalars: the loss and the objective's measures over the step group, and whether any rank wants
// to stop.
bool RunRecorder::take(const Reading* reading, bool wants_to_stop) {
  std::vector<double> sums{reading ? reading->loss_sum : 0, wants_to_stop ? 1.0 : 0.0};
  if (reading) sums.insert(sums.end(), reading->measures.begin(), reading->measures.end());
  sums.resize(2 + measured_.size());
  job_.engine.step_group
      ->all_reduce({sums.data(), static_cast<int64_t>(sums.size()), comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "loss"})
      .wait_host();
  if (reading) {
    const StepRecord facts = waiting_.front();
    waiting_.pop_front();
    CAIRN_CHECK(facts.step == reading->step, "a reading of step {} instead of step {}", reading->step, facts.step);
    std::vector<double> measures(sums.begin() + 2, sums.end());
    for (double& one : measures) one /= static_cast<double>(facts.loss_denominator);
    write(facts, *reading, sums[0] / static_cast<double>(facts.loss_denominator), measures);
  }
  return sums[1] > 0;
}

void RunRecorder::write(const StepRecord& facts, const Reading& reading, double loss, const std::vector<double>& measures) {
  const double now_s = base::seconds(world_.wall().now()), step_s = reading.seconds.value_or(now_s - last_s_);
  last_s_ = now_s;
  job_.progress.seconds_done += step_s;
  const double rate = static_cast<double>(facts.tokens) / step_s;
  tokens_per_s_ = tokens_per_s_ == 0 ? rate : 0.9 * tokens_per_s_ + 0.1 * rate;
  const int64_t memory = memory_in_use(job_.config.device);
  const bool evaluated = !std::isnan(facts.held_out.loss);
  if (metrics_) {
    base::MetricsRow row{{{"step", facts.step},
                          {"loss", loss},
                          {"tokens", facts.tokens_done},
                          {"tokens_per_s", rate},
                          {"grad_norm", reading.gradient_norm},
                          {"lr", facts.learning_rate},
                          {"batch", facts.batch},
                          {"samples", fmt::format("{:016x}", facts.samples)},
                          {"memory_bytes", memory},
                          {"seconds", job_.progress.seconds_done}}};
    if (const int64_t most = memory_of_tensors_most(job_.config.device); most > 0)
      row.values.push_back({"memory_tensors_most_bytes", most});
    if (startup_s_ > 0) {
      row.values.push_back({"startup_seconds", std::exchange(startup_s_, 0)});
      for (const auto& [part, seconds] : job_.instruments.startup) row.values.push_back({fmt::format("startup_{}_seconds", part), seconds});
    }
    for (size_t i = 0; i < measures.size(); ++i) row.values.push_back({measured_[i], measures[i]});
    if (facts.snapshot_s > 0) row.values.push_back({"snapshot_s", facts.snapshot_s});
    if (evaluated) row.values.push_back({"eval_loss", facts.held_out.loss});
    for (size_t i = 0; i < facts.held_out.measures.size(); ++i)
      row.values.push_back({fmt::format("eval_{}", measured_[i]), facts.held_out.measures[i]});
    for (const auto& [name, value] : facts.metrics) row.values.push_back({name, value});
    if (!facts.fault.empty()) row.values.push_back({"skipped", facts.fault});
    metrics_->write(row);
  }
  if (tensorboard_) {
    tensorboard_->scalar("train/loss", facts.step, loss);
    tensorboard_->scalar("train/grad_norm", facts.step, reading.gradient_norm);
    tensorboard_->scalar("train/learning_rate", facts.step, facts.learning_rate);
    tensorboard_->scalar("throughput/tokens_per_s", facts.step, rate);
    tensorboard_->scalar("memory/bytes", facts.step, static_cast<double>(memory));
    for (size_t i = 0; i < measures.size(); ++i) tensorboard_->scalar(fmt::format("train/{}", measured_[i]), facts.step, measures[i]);
    for (const auto& [name, value] : facts.metrics) tensorboard_->scalar(fmt::format("sync/{}", name), facts.step, value);
    if (evaluated) tensorboard_->scalar("eval/loss", facts.step, facts.held_out.loss);
    for (size_t i = 0; i < facts.held_out.measures.size(); ++i)
      tensorboard_->scalar(fmt::format("eval/{}", measured_[i]), facts.step, facts.held_out.measures[i]);
  }
  if (!job_.bad_steps->before_update()) job_.bad_steps->must_be_good(facts.step, loss, reading.gradient_norm);
  result_.step = facts.step;
  if (facts.fault.empty()) result_.loss = loss;
  if (evaluated) result_.held_out_loss = facts.held_out.loss;
  if (progress_ && (progress_->due() || facts.step == job_.config.settings.train.steps)) {
    const int64_t steps = job_.config.settings.train.steps;
    const double left_s = static_cast<double>((steps - facts.step) * facts.tokens) / tokens_per_s_;
    progress_->update(fmt::format("step {}/{}  loss {:.4f}{}  {} tokens/s  {}  {} left", facts.step, steps, loss,
                                  std::isnan(result_.held_out_loss) ? "" : fmt::format("  held-out {:.4f}", result_.held_out_loss),
                                  base::human_count(tokens_per_s_), base::human_bytes(memory),
                                  base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(left_s * 1e9)))));
  }
}

void RunRecorder::rolled_back() {
  while (const std::optional<Reading> reading = meter_.take(/*all=*/true)) take(&*reading, false);
  if (!metrics_) return;
  metrics_.reset();
  base::truncate_metrics(start_.out / "metrics.jsonl", job_.progress.steps_done);
  metrics_ = std::make_unique<base::Metrics>(start_.out / "metrics.jsonl");
}

void RunRecorder::finish(bool stopped) {
  while (const std::optional<Reading> reading = meter_.take(/*all=*/true)) take(&*reading, false);
  result_.stopped = stopped;
  if (progress_)
    progress_->finish(fmt::format("{} step {}: loss {:.4f}, {} tokens in {}", stopped ? "stopped at" : "trained to", result_.step,
                                  result_.loss, base::human_count(static_cast<double>(job_.progress.tokens_done)),
                                  base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(job_.progress.seconds_done * 1e9)))));
  if (start_.out.empty()) return;
  write_run_files(world_, job_, start_, result_);
}

}  // namespace cairn::train
