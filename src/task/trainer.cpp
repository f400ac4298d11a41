#include "task/trainer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random/permutation.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "snapshot/snapshot.h"
#include "task/calls.h"
#include "task/checkpoints.h"
#include "task/predictor.h"
#include "task/task_replica.h"

namespace cairn::task {
namespace {

void check_options(const TrainerOptions& o, int dp) {
  const auto at_least_one = [&](const char* what, int64_t value) {
    if (value < 1) base::fail_input("trainer \"{}\": {} = {}: must be at least 1", o.name, what, value);
  };
  at_least_one("per_device_batch", o.per_device_batch);
  at_least_one("epochs", o.epochs);
  const int64_t least = o.per_device_batch * dp, below = o.global_batch / least * least;
  if (o.global_batch < 0 || o.global_batch != below)
    base::fail_input(
        "trainer \"{}\": global_batch = {} is no multiple of per_device_batch * dp = {} * {} = {}: take {}{}, or another per_device_batch",
        o.name, o.global_batch, o.per_device_batch, dp, least, below > 0 ? fmt::format("{} or ", below) : "",
        std::max<int64_t>(0, below) + least);
  if (o.warmup_steps < 0 || o.warmup_ratio < 0 || o.warmup_ratio > 1 || (o.warmup_steps > 0 && o.warmup_ratio > 0))
    base::fail_input("trainer \"{}\": warmup_steps = {}, warmup_ratio = {}: one of them, steps of 0 or more or a share from 0 to 1", o.name,
                     o.warmup_steps, o.warmup_ratio);
  const auto not_negative = [&](const char* what, double value) {
    if (!(value >= 0)) base::fail_input("trainer \"{}\": {} = {}: must be 0 or more", o.name, what, value);
  };
  not_negative("learning_rate", o.learning_rate);
  not_negative("momentum", o.momentum);
  not_negative("weight_decay", o.weight_decay);
  not_negative("max_grad_norm", o.max_grad_norm);
  not_negative("min_lr_ratio", o.min_lr_ratio);
  not_negative("steps_total", static_cast<double>(o.steps_total));
  not_negative("save.every_epochs", static_cast<double>(o.save.every_epochs));
  if (o.precision != "fp32" && o.precision != "bf16")
    base::fail_input("trainer \"{}\": precision = \"{}\": must be fp32 or bf16", o.name, o.precision);
  if (o.zero < 0 || o.zero > 2)
    base::fail_input(
        "trainer \"{}\": zero = {}: must be 0, 1 or 2 (a task's functions read all parameters at once, so sharing them out, 3, "
        "saves nothing)",
        o.name, o.zero);
}

optim::LrSchedule schedule_of(const TrainerOptions& o) {
  optim::LrSchedule schedule{.shape = o.schedule, .highest = o.learning_rate, .min_lr_ratio = o.min_lr_ratio};
  schedule.learning_rate(0.5);  // refuses an unknown shape before the first step
  return schedule;
}

}  // namespace

struct Training::State {
  Deployer& deployer;
  TrainerOptions options;
  int64_t global_batch = 0;
  TaskReplica replica;
  optim::LrSchedule schedule;
  std::unique_ptr<base::Metrics> metrics;  // on the rank that writes
  TrainerState progress = {};
  bool checked = false;
  std::set<int64_t> warned = {};                       // lengths of lists that were warned about
  std::optional<snapshot::OpenSnapshot> resumed = {};  // until parameters are placed

  State(Deployer& of, TaskFunctions functions, const Params& start, TrainerOptions with)
      : deployer(of),
        options(std::move(with)),
        global_batch(options.global_batch > 0 ? options.global_batch : options.per_device_batch * of.dp()),
        replica(of, std::move(functions), start, options),
        schedule(schedule_of(options)) {
    progress.seed = deployer.options().seed;
  }

  const TaskFunctions& functions() const { return replica.functions(); }
  base::Log& log() const { return deployer.world().log(); }

  // Refuses ranks with lists of different lengths: they would train on different examples, or wait for each other.
  void check_count(int64_t count) {
    std::vector<int64_t> all(static_cast<size_t>(deployer.dp()));
    deployer.replicas()
        .all_gather({all.data(), deployer.dp(), comm::Dtype::i64}, {&count, 1, comm::Dtype::i64}, {comm::Purpose::control, "examples"})
        .wait_host();
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        base::fail_input("trainer \"{}\": rank 0 was given {} examples, rank {} {}: all ranks must be given the same list", options.name,
                         all[0], rank, all[rank]);
    if (count < global_batch)
      base::fail_input(
          "trainer \"{}\": {} examples are fewer than the global batch of {} ({} on each of {} ranks, {} micro-batches): give more "
          "examples, "
          "or take a smaller batch or fewer ranks",
          options.name, count, global_batch, options.per_device_batch, deployer.dp(),
          global_batch / (options.per_device_batch * deployer.dp()));
    if (const int64_t dropped = count % global_batch; dropped > 0 && warned.insert(count).second)  // once per length
      log().warn("{}: {} of {} examples do not fill a global batch of {} and are left out of each epoch", options.name, dropped, count,
                 global_batch);
  }

  // Along tp: before the first step, because the rules read a batch.
  void place(const Examples& training) {
    if (!deployer.tensor_axis() || !replica.rules().empty()) return;
    replica.place(training);
    if (resumed) replica.load(*resumed);
    resumed.reset();
    int64_t split = 0;
    for (const auto& [name, rule] : replica.rules()) split += rule.dim >= 0;
    log().info("{}: tp={} parameters={} split={}", options.name, deployer.tp(), replica.rules().size(), split);
  }

  void check_once(const Examples& training, const Examples& evaluation) {
    if (checked || !options.sanity_check) return;
    checked = true;
    const bool evaluates = evaluation.count > 0;
    std::vector<std::string> names{"loss"};
    const std::vector<std::string> more =
        check_task(deployer, functions(), replica.leaves(false), evaluates ? evaluation : training, options.per_device_batch);
    if (evaluates) names.insert(names.end(), more.begin(), more.end());
    for (const auto* list : {&options.save.argmin, &options.save.argmax})
      for (const std::string& name : *list)
        if (std::find(names.begin(), names.end(), name) == names.end()) base::fail_unknown("metric to save by", name, names);
  }

  // The places of an epoch in order, the same on all ranks.
  std::vector<int64_t> order(int64_t epoch, int64_t count) const {
    const base::Permutation places(static_cast<uint64_t>(count), deployer.random("task.shuffle").for_index(static_cast<uint64_t>(epoch)));
    std::vector<int64_t> order(static_cast<size_t>(count));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(places.at(i));
    return order;
  }

  StepReport step(const Examples& training, std::span<const int64_t> batch, double learning_rate) {
    const auto share = data::replica_range(global_batch, deployer.replica(), deployer.dp());
    const StepResult result =
        replica.step(training, batch.subspan(static_cast<size_t>(share.first), static_cast<size_t>(share.count)),
                     {.step = progress.step + 1, .update = progress.updates + 1, .first = share.first, .learning_rate = learning_rate});
    ++progress.step, ++progress.updates;
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
      throw Error(
          Error::Kind::diverged,
          fmt::format("trainer \"{}\": step {} gave a loss of {} and a gradient norm of {}: lower learning_rate, set clip, or look at "
                      "what loss divides by",
                      options.name, progress.step, result.loss, result.gradient_norm));
    return {.epoch = progress.epoch + 1,
            .step = progress.step,
            .loss = result.loss,
            .gradient_norm = result.gradient_norm,
            .learning_rate = learning_rate};
  }

  void note(const StepReport& report) {
    log().debug("{}: epoch={} step={} loss={:.6g} grad_norm={:.4g} lr={:.4g}", options.name, report.epoch, report.step, report.loss,
                report.gradient_norm, report.learning_rate);
    if (metrics)
      metrics->write({{{"step", report.step},
                       {"epoch", report.epoch},
                       {"loss", report.loss},
                       {"grad_norm", report.gradient_norm},
                       {"lr", report.learning_rate}}});
  }

  void end_epoch(const EpochReport& report) {
    std::string text = fmt::format("{}: epoch={} step={}", options.name, report.epoch, progress.step);
    base::MetricsRow row{{{"step", progress.step}, {"epoch", report.epoch}}};
    for (const auto& [name, value] : report.metrics) {
      text.append(fmt::format(" {}={:.6g}", name, value));
      row.values.emplace_back(name == "loss" ? "epoch_loss" : name, value);
    }
    log().info("{}", text);
    if (metrics) metrics->write(row);
    if (deployer.options().out.empty()) return;
    const std::vector<std::string> due = folders_due(options.save, progress.epoch, report.metrics, progress.best);
    if (due.empty()) return;
    const auto [model, optimizer] = replica.whole_state();  // collective
    if (deployer.writes())
      for (const std::string& name : due) write_checkpoint(deployer.folder(options.name), name, about(), model, optimizer, progress);
    deployer.replicas().barrier("checkpoint").wait_host();
  }

  std::string about() const {
    return fmt::format(
        "# A task's trainer; it is described by its program.\n[task]\nname = \"{}\"\nper_device_batch = {}\nglobal_batch = {}\nepochs = "
        "{}\n"
        "optimizer = \"{}\"\nlr = {}\nschedule = \"{}\"\n",
        options.name, options.per_device_batch, global_batch, options.epochs, options.optimizer, options.learning_rate, options.schedule);
  }

  Metrics evaluate(const Examples& examples) const {
    if (examples.count == 0) base::fail_input("trainer \"{}\": no examples to evaluate on", options.name);
    Metrics found{{"eval_loss", replica.mean_loss(examples)}};
    if (!examples.metric) return found;
    const Outputs outputs = predict_all(deployer, functions(), replica.leaves(false), examples, options.per_device_batch);
    found.merge(metrics_of(examples, examples.count, outputs));
    return found;
  }

  void resume() {
    const auto found = newest(deployer.world(), deployer.folder(options.name));
    if (!found) return;
    progress = parse_trainer_state(found->text("training/state.json"), found->path() + "/training/state.json");
    if (progress.seed != deployer.options().seed)
      base::fail_input(
          "trainer \"{}\": seed = {} differs from the {} that {} was trained with: its examples would come in another order; "
          "resume with the same seed",
          options.name, deployer.options().seed, progress.seed, found->path());
    replica.load(*found);
    resumed = std::move(found);
    log().info("{}: resumed {} after epoch {}, step {}", options.name, found->path(), progress.epoch, progress.step);
  }
};

Training::Training(Deployer& deployer, TaskFunctions functions, const Params& start, TrainerOptions options) {
  check_options(options, deployer.dp());
  if (!functions.loss && !functions.train_step) base::fail_input("trainer \"{}\": the task has no loss", options.name);
  deployer.take_name(options.name);
  state_ = std::make_unique<State>(deployer, std::move(functions), start, std::move(options));
  if (state_->options.resume && !deployer.options().out.empty()) state_->resume();
  if (deployer.writes()) {
    base::make_folder(deployer.folder(state_->options.name));
    const auto path = deployer.folder(state_->options.name) / "metrics.jsonl";
    base::truncate_metrics(path, state_->progress.step);
    state_->metrics = std::make_unique<base::Metrics>(path);
  }
}

Training::~Training() = default;

Report Training::fit(const Examples& training, const Examples& evaluation) {
  State& s = *state_;
  s.check_count(training.count);
  s.place(training);
  s.check_once(training, evaluation);
  Report report;
  const int64_t steps = training.count / s.global_batch, epochs = s.options.epochs;
  report.dropped = training.count % s.global_batch;
  const int64_t last = (s.progress.epoch / epochs + 1) * epochs;
  const int64_t total = s.options.steps_total > 0 ? s.options.steps_total : epochs * steps;
  s.schedule.warmup =
      s.options.warmup_ratio > 0 ? s.options.warmup_ratio : static_cast<double>(s.options.warmup_steps) / static_cast<double>(total);
  while (s.progress.epoch < last) {
    const std::vector<int64_t> order = s.order(s.progress.epoch + 1, training.count);
    double sum = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t done = s.options.steps_total > 0 ? s.progress.step : (s.progress.epoch + epochs - last) * steps + i;
      const double progress = std::min(1.0, static_cast<double>(done + 1) / static_cast<double>(total));
      const auto batch = std::span(order).subspan(static_cast<size_t>(i * s.global_batch), static_cast<size_t>(s.global_batch));
      report.steps.push_back(s.step(training, batch, s.schedule.learning_rate(progress)));
      s.note(report.steps.back());
      sum += report.steps.back().loss;
    }
    ++s.progress.epoch;
    EpochReport& epoch = report.epochs.emplace_back(EpochReport{.epoch = s.progress.epoch});
    if (evaluation.count > 0) epoch.metrics = s.evaluate(evaluation);
    epoch.metrics["loss"] = sum / static_cast<double>(steps);
    s.end_epoch(epoch);
  }
  return report;
}

Metrics Training::evaluate(const Examples& examples) const { return state_->evaluate(examples); }
const std::map<std::string, TensorRule>& Training::tensor_rules() const { return state_->replica.rules(); }
Params Training::params() const { return state_->replica.params(); }
void Training::reset(const Params& to) {
  state_->replica.reset(to);
  state_->progress.updates = 0;
}
int64_t Training::steps_done() const { return state_->progress.step; }
int64_t Training::epochs_done() const { return state_->progress.epoch; }

}  // namespace cairn::task
