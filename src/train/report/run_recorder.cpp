#include "train/report/run_recorder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/world.h"
#include "kernels/peak_flops.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/flops.h"
#include "train/report/run_files.h"
#include "train/report/run_starts.h"
#include "train/report/try_to_write.h"
#include "train/step_plan/kept_plans.h"

namespace cairn::train {
namespace {

constexpr std::chrono::microseconds kLooksAway{500};  // how long the host handles messages between islands before it polls the GPU

Start in_step_group(Start start, const Job& job) {
  start.out = job.config.out;
  return start;
}

std::string time_in_words(double seconds) { return base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))); }

// The peak of all ranks of the step group together.
double group_peak_flops(const Job& job) {
  const bool bf16 = job.config.settings.train.precision == Precision::bf16;
  double peak = kernels::peak_flops(job.config.device, bf16 ? at::kBFloat16 : at::kFloat, *job.instruments.wall);
  job.engine.step_group->all_reduce({&peak, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "peak FLOP/s"}).wait_host();
  return peak;
}

// How often an action that is due every `every` steps, and after the last one, is due after `step`.
int64_t times_due(int64_t step, int64_t every, int64_t last) {
  if (step >= last) return 0;
  return every <= 0 ? 1 : last / every - step / every + (last % every != 0);
}

}  // namespace

RunRecorder::RunRecorder(comm::World& world, Job& job, const Start& start)
    : world_(world),
      job_(job),
      start_(in_step_group(start, job)),
      meter_(job.config.device, [&job] { return job.engine.sync->progress(kLooksAway); }),
      measured_(model::measures_of(*job.engine.model, *job.engine.objective)) {
  result_.step = job.progress.steps_done;
  result_.held_out_loss = std::numeric_limits<double>::quiet_NaN();
  if (job.config.writes) {
    open_run_folder(start_.out, job);
    note_start(start_.out / kStartsFile, this_start(job, start_, world.size()));
    open_metrics();
    if (job.config.settings.log.tensorboard)
      tensorboard_ = std::make_unique<base::TensorBoard>(start_.out / "tensorboard", base::real_disk(),
                                                         [this](const std::string& text) { world_.log().warn("{}", text); });
  }
  if (start.terminal && world.rank() == 0) progress_ = std::make_unique<base::Progress>(*start.terminal, world.wall());
  if (!job.config.out.empty()) {
    flops_per_token_ = training_flops_per_token(job);
    peak_flops_ = group_peak_flops(job);
  }
  startup_s_ = start.seconds_before + base::process_age();
  last_s_ = base::seconds(world.wall().now());
  last_waited_ = world.waited();
}

RunRecorder::~RunRecorder() = default;

void RunRecorder::open_metrics() {
  const auto warn = [this](const std::string& text) { world_.log().warn("{}", text); };
  metrics_ = std::make_unique<base::Metrics>(start_.out / "metrics.jsonl", base::real_disk(), warn);
  if (job_.ahead.planner) plans_ = std::make_unique<base::LogFile>(start_.out / kPlansFile, base::real_disk(), warn);
}

bool RunRecorder::step(const StepRecord& facts, const StepOutput& output, bool wants_to_stop) {
  meter_.add(facts.step, output);
  waiting_.push_back(facts);
  waiting_.back().paused_s = std::exchange(step_pause_s_, 0);
  const std::optional<Reading> reading = meter_.take(/*all=*/false);
  const double waited_s = base::seconds(world_.waited() - last_waited_);
  const double own_s = std::max(base::seconds(world_.wall().now()) - last_s_ - waited_s, 0.0);
  return take(reading ? &*reading : nullptr, wants_to_stop, own_s);
}

void RunRecorder::settle() {
  while (const std::optional<Reading> reading = meter_.take(/*all=*/true)) take(&*reading, false, 0);
}

// One small all-reduce per step carries all scalars: the loss and the objective's measures over the step group, whether any rank wants to
// stop, and each rank's own time.
bool RunRecorder::take(const Reading* reading, bool wants_to_stop, double own_s) {
  comm::Group& group = *job_.engine.step_group;
  const size_t first_time = 2 + measured_.size(), ranks = group.size() > 1 ? static_cast<size_t>(group.size()) : 0;
  std::vector<double> sums(first_time + ranks);
  sums[0] = reading ? reading->loss_sum : 0;
  sums[1] = wants_to_stop ? 1 : 0;
  if (reading) std::copy(reading->measures.begin(), reading->measures.end(), sums.begin() + 2);
  if (ranks > 0) sums[first_time + static_cast<size_t>(group.rank())] = own_s;
  group.all_reduce({sums.data(), static_cast<int64_t>(sums.size()), comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "loss"})
      .wait_host();
  const auto times = sums.begin() + static_cast<std::ptrdiff_t>(first_time);
  if (own_s > 0 && ranks > 0) {
    rank_seconds_.assign(times, sums.end());
    rank_times_.add(rank_seconds_);
  }
  if (reading) {
    const StepRecord facts = waiting_.front();
    waiting_.pop_front();
    CAIRN_CHECK(facts.step == reading->step, "a reading of step {} instead of step {}", reading->step, facts.step);
    std::vector<double> measures(sums.begin() + 2, times);
    for (double& one : measures) one /= static_cast<double>(facts.loss_denominator);
    write(facts, *reading, sums[0] / static_cast<double>(facts.loss_denominator), std::move(measures));
  }
  return sums[1] > 0;
}

void RunRecorder::write(const StepRecord& facts, const Reading& reading, double loss, std::vector<double> measures) {
  const double now_s = base::seconds(world_.wall().now());
  StepNumbers numbers{.loss = loss,
                      .gradient_norm = reading.gradient_norm,
                      .step_s = reading.seconds.value_or(now_s - std::exchange(last_s_, now_s)),
                      .comm_wait_s = base::seconds(world_.waited() - std::exchange(last_waited_, world_.waited())),
                      .measures = std::move(measures),
                      .memory = memory_in_use(job_.config.device)};
  if (reading.seconds) numbers.step_s -= facts.paused_s;  // the host's clock was set back already
  job_.progress.seconds_done += numbers.step_s + facts.paused_s;
  numbers.tokens_per_s = static_cast<double>(facts.tokens) / numbers.step_s;
  if (peak_flops_ > 0) {
    const double flops = facts.flops > 0 ? facts.flops : flops_per_token_ * static_cast<double>(facts.positions);
    numbers.mfu = flops / numbers.step_s / peak_flops_;
  }
  const auto smooth = [](double& mean, double rate) { mean = mean == 0 ? rate : 0.9 * mean + 0.1 * rate; };
  smooth(tokens_per_s_, numbers.tokens_per_s);
  smooth(steps_per_s_, 1 / numbers.step_s);
  if (metrics_) write_row(facts, numbers);
  if (const std::string line = facts.plan + "\n"; plans_) plans_->append(std::as_bytes(std::span(line)));
  if (tensorboard_) write_tensorboard(facts, numbers);
  if (!job_.bad_steps->before_update()) job_.bad_steps->must_be_good(facts.step, loss, reading.gradient_norm);
  result_.step = facts.step;
  if (facts.fault.empty()) result_.loss = loss;
  if (progress_ && (progress_->due() || facts.step == last_step(job_))) show(facts, numbers);
}

void RunRecorder::write_row(const StepRecord& facts, const StepNumbers& numbers) {
  base::MetricsRow row{{{"step", facts.step},
                        {"loss", numbers.loss},
                        {"tokens", facts.tokens_done},
                        {"tokens_per_s", numbers.tokens_per_s},
                        {"grad_norm", numbers.gradient_norm},
                        {"lr", facts.learning_rate},
                        {"batch", facts.batch},
                        {"samples", fmt::format("{:016x}", facts.samples)},
                        {"memory_bytes", numbers.memory},
                        {"seconds", job_.progress.seconds_done},
                        {"step_seconds", numbers.step_s},
                        {"data_wait_seconds", facts.data_wait_s},
                        {"comm_wait_seconds", numbers.comm_wait_s}}};
  if (numbers.mfu) row.values.push_back({"mfu", *numbers.mfu});
  if (!rank_seconds_.empty()) row.values.push_back({"rank_seconds", rank_seconds_});
  if (const std::optional<RankTimes::Slow> slow = rank_times_.slowest()) {
    row.values.push_back({"slowest_rank", int64_t{job_.engine.step_group->ranks()[static_cast<size_t>(slow->rank)]}});
    row.values.push_back({"slowest_rank_behind", slow->behind});
  }
  if (const int64_t most = memory_of_tensors_most(job_.config.device); most > 0) row.values.push_back({"memory_tensors_most_bytes", most});
  if (startup_s_ > 0) {
    row.values.push_back({"startup_seconds", std::exchange(startup_s_, 0)});
    for (const auto& [part, seconds] : job_.instruments.startup) row.values.push_back({fmt::format("startup_{}_seconds", part), seconds});
  }
  for (size_t i = 0; i < numbers.measures.size(); ++i)  // not those of passes that this step does not have
    if (!std::isnan(numbers.measures[i])) row.values.push_back({measured_[i], numbers.measures[i]});
  if (facts.snapshot_s > 0) row.values.push_back({"snapshot_s", facts.snapshot_s});
  for (const auto& [name, value] : facts.metrics) row.values.push_back({name, value});
  if (!facts.fault.empty()) row.values.push_back({"skipped", facts.fault});
  facts.evaluated ? metrics_->write_before_evaluation(row) : metrics_->write(row);
}

void RunRecorder::write_tensorboard(const StepRecord& facts, const StepNumbers& numbers) {
  const auto scalar = [&](std::string_view tag, double value) { tensorboard_->scalar(tag, facts.step, value); };
  scalar("train/loss", numbers.loss);
  scalar("train/grad_norm", numbers.gradient_norm);
  scalar("train/learning_rate", facts.learning_rate);
  scalar("throughput/tokens_per_s", numbers.tokens_per_s);
  if (numbers.mfu) scalar("throughput/mfu", *numbers.mfu);
  scalar("throughput/data_wait_seconds", facts.data_wait_s);
  scalar("throughput/comm_wait_seconds", numbers.comm_wait_s);
  scalar("memory/bytes", static_cast<double>(numbers.memory));
  for (size_t i = 0; i < numbers.measures.size(); ++i)
    if (!std::isnan(numbers.measures[i])) scalar(fmt::format("train/{}", measured_[i]), numbers.measures[i]);
  for (const auto& [name, value] : facts.metrics) scalar(fmt::format("sync/{}", name), value);
}

// With what is left of evaluations and saves, each as long as the last one.
double RunRecorder::seconds_left(int64_t step) const {
  const Settings& s = job_.config.settings;
  const int64_t last = last_step(job_);
  const int64_t pauses = std::max(times_due(step, s.eval.every, last), times_due(step, s.snapshot.every, last));
  return static_cast<double>(last - step) / steps_per_s_ + static_cast<double>(pauses) * pause_s_;
}

void RunRecorder::show(const StepRecord& facts, const StepNumbers& numbers) {
  const int64_t steps = last_step(job_);
  std::string line = fmt::format("step {}/{}  loss {:.4f}", facts.step, steps, numbers.loss);
  if (!std::isnan(result_.held_out_loss)) line += fmt::format("  held-out {:.4f}", result_.held_out_loss);
  line += fmt::format("  lr {:.3g}  grad norm {:.3g}  {} tokens/s", facts.learning_rate, numbers.gradient_norm,
                      base::human_count(tokens_per_s_));
  if (numbers.mfu) line += fmt::format("  MFU {:.1f} %", 100 * *numbers.mfu);
  line += fmt::format("  waits: data {:.3f} s, comm {:.3f} s", facts.data_wait_s, numbers.comm_wait_s);
  if (const std::optional<RankTimes::Slow> slow = rank_times_.slowest())
    line += fmt::format("  slowest: rank {}, {:.0f} % behind", job_.engine.step_group->ranks()[static_cast<size_t>(slow->rank)],
                        100 * slow->behind);
  line += fmt::format("  {}", base::human_bytes(numbers.memory));
  if (facts.step < steps) line += fmt::format("  {} left", time_in_words(seconds_left(facts.step)));
  progress_->update(line);
}

void RunRecorder::evaluating(double done) {
  if (!progress_ || !progress_->due()) return;
  progress_->update(fmt::format("step {}/{}  loss {:.4f}  evaluating: {:.0f} %", result_.step, last_step(job_), result_.loss, 100 * done));
}

void RunRecorder::held_out(const HeldOut& found) {
  result_.held_out_loss = found.loss;
  base::MetricsRow row{{{"eval_loss", found.loss}}};
  for (size_t i = 0; i < found.measures.size(); ++i)  // not those that only a training batch has
    if (!std::isnan(found.measures[i])) row.values.push_back({fmt::format("eval_{}", measured_[i]), found.measures[i]});
  for (const auto& [name, value] : found.more) row.values.push_back({"eval_" + name, value});
  row.values.push_back({"eval_seconds", found.seconds});
  if (metrics_) metrics_->evaluated(row);
  if (!tensorboard_) return;
  tensorboard_->scalar("eval/loss", result_.step, found.loss);
  for (const auto& [name, value] : found.more) tensorboard_->scalar("eval/" + name, result_.step, value);
  for (size_t i = 0; i < found.measures.size(); ++i)
    if (!std::isnan(found.measures[i])) tensorboard_->scalar(fmt::format("eval/{}", measured_[i]), result_.step, found.measures[i]);
}

void RunRecorder::after_pause() {
  const double now_s = base::seconds(world_.wall().now());
  pause_s_ = now_s - std::exchange(last_s_, now_s);
  job_.progress.seconds_done += pause_s_;
  last_waited_ = world_.waited();
  meter_.restart();
}

void RunRecorder::paused_in_step(double seconds, std::chrono::nanoseconds waited) {
  last_s_ += seconds;
  last_waited_ += waited;
  step_pause_s_ += seconds;
}

void RunRecorder::rolled_back() {
  settle();
  step_pause_s_ = 0;
  if (!metrics_) return;
  metrics_.reset();
  plans_.reset();
  try_to_write(world_.log(), "metrics", [&] {
    base::truncate_metrics(start_.out / "metrics.jsonl", job_.progress.steps_done);
    base::truncate_metrics(start_.out / kPlansFile, job_.progress.steps_done);
    open_metrics();
  });
}

void RunRecorder::finish(bool stopped) {
  settle();
  result_.stopped = stopped;
  if (progress_)
    progress_->finish(
        fmt::format("{} step {}: loss {:.4f}{}, {} tokens in {}", stopped ? "stopped at" : "trained to", result_.step, result_.loss,
                    std::isnan(result_.held_out_loss) ? "" : fmt::format(", held-out {:.4f}", result_.held_out_loss),
                    base::human_count(static_cast<double>(job_.progress.tokens_done)), time_in_words(job_.progress.seconds_done)));
  if (start_.out.empty()) return;
  write_run_files(world_, job_, start_, result_);
}

}  // namespace cairn::train
