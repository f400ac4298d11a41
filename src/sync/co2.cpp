// CO2 (Sun et al. 2024, arXiv 2401.16265): local steps whose communication overlaps completely with the next round.
//
// Islands train in rounds of tau steps (`every`). At the end of round t each sends how far it has come from the round's common start
// x_t (`start_`); the mean of these travels while round t + 1 trains and is used at that round's end, one round late. With rounds long
// enough nobody ever waits.
//
//   D_t      = mean over islands m of (theta_m - x_t)                     the progress of round t
//   gap      = 1 + |x_t - x_(t-1)| / (tau |first step of round t-1|)      staleness penalty; `gap` = ratio
//   b        <- mu b - D_(t-1) / gap                                      mu: `outer_momentum`, b: `momentum_`
//   x_(t+1)  = x_t - eta clamp(b, -c, c)                                  eta: `outer_lr`, c = `clip` * learning rate * tau
//
// The clamp bounds each value by what inner steps could have moved it. x is the global model: bitwise identical on every island. With
// `every` = 0 the islands measure a step and an exchange and choose a tau that hides the exchange.
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/compressor.h"
#include "sync/islands/flat_parameters.h"
#include "sync/islands/merge.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"
#include "sync/islands/replica_signature.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

constexpr int64_t kTimed = 20;                                     // steps that are timed before the length of a round is chosen
constexpr double kMargin = 1.2;                                    // a round takes this many times as long as its exchange
constexpr int32_t kMeans = 0, kTimes = 1, kTrial = 2, kFirst = 3;  // parts of a step's messages

class Co2 final : public Sync {
 public:
  Co2(const SyncOptions& options, Replica replica)
      : options_(options.co2),
        replica_(replica),
        compressor_(make_compressor({wire_of(options), options.exchange.keep, replica.seed})),
        exact_(make_compressor({"fp32"})),
        rule_{options.exchange.merge, options.exchange.trim},
        messenger_({in_world_link(replica.replica_group), signature_of(options, replica), max_message_bytes(replica), is_on_gpu(replica)}),
        quorum_(messenger_, quorum_options(options, replica)),
        parameters_(replica.parameters),
        start_(parameters_.zeros()),
        before_(parameters_.zeros()),
        momentum_(parameters_.zeros()),
        sent_(parameters_.zeros()),
        counters_(at::zeros({kCounters}, at::kDouble)) {
    counters_[kStep].fill_(-1);
    if (is_sparse(wire_of(options))) own_start_ = parameters_.zeros();
    if (replica.steps > 0 && replica.steps < options_.every)
      base::fail_input("sync.island.every = {}: the run has {} steps, so no round would take place: use less", options_.every,
                       replica.steps);
  }

  int64_t begin(int64_t steps_done) override {
    const bool restored = steps_done > 0 && number(kStep) == static_cast<double>(steps_done);
    if (!restored) {
      start_.copy_(parameters_.flatten());
      momentum_.zero_();
      counters_.zero_();
      set(kRoundBegun, static_cast<double>(steps_done));
      set(kEvery, static_cast<double>(options_.every));
      if (options_.every == 0) time_traffic(steps_done);
    } else if (number(kInFlight) > 0) {
      start_exchange(number(kPendingStep));
    }
    if (own_start_.defined()) own_start_.copy_(parameters_.flatten());
    set(kStep, static_cast<double>(steps_done));
    last_s_ = now_s();
    return steps_done;
  }

  void gradient_ready(int64_t) override {
    if (pending_) pending_->progress();
  }

  bool progress(std::chrono::nanoseconds at_most) override {
    return pending_ && !messenger_.wait([&] { return pending_->progress(); }, messenger_.now() + at_most);
  }

  comm::Work after_step(const StepFacts& facts) override {
    stop_decided_ = false;
    const auto in_round = facts.step - static_cast<int64_t>(number(kRoundBegun));
    if (in_round == 1) {
      set(kLearningRate, facts.learning_rate);
      set(kFirstMove, norm_over_island(parameters_.flatten().sub_(own_start_.defined() ? own_start_ : start_)));
    }
    if (number(kEvery) == 0 && in_round == kTimed) choose_every(facts.step);
    if (number(kEvery) > 0 && in_round >= static_cast<int64_t>(number(kEvery))) end_round(facts.step, in_round);
    if (pending_) pending_->progress();
    set(kStep, static_cast<double>(facts.step));
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // each round finds out who is there (islands/quorum.h)

  // The last round may be short. Both exchanges that are still pending are applied, so that nothing learned is lost.
  void finish() override {
    const auto step = static_cast<int64_t>(number(kStep));
    if (const int64_t in_round = step - static_cast<int64_t>(number(kRoundBegun)); in_round > 0) end_round(step, in_round);
    if (!pending_) return;
    const at::Tensor residual = own_start_.defined() ? parameters_.flatten().sub_(start_) : at::Tensor();
    if (const at::Tensor mean = finish_exchange(); mean.defined()) apply_outer_step(mean, 1);
    if (residual.defined()) {  // in fp32, this time
      last_ = true;
      sent_.copy_(residual);
      start_exchange(static_cast<double>(step + 1));
      if (const at::Tensor mean = finish_exchange(); mean.defined()) apply_outer_step(mean, 1);
    }
    parameters_.assign(start_);
  }

  std::vector<at::Tensor> global_parameters() override { return parameters_.views(start_); }
  std::vector<ElementState> elements(int64_t) override {
    const std::vector<bool> all(replica_.model.size(), true);
    return {{"momentum", all, parameters_.views(momentum_)},
            {"before", all, parameters_.views(before_)},
            {"sent", all, parameters_.views(sent_)}};
  }
  mesh::NamedTensors state() override { return {{"outer_counters", counters_}}; }

  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return stop_decided_ || trouble_.ended; }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // Small numbers that a restart needs. Moves are norms: of this round's first step, and of the pending round's, averaged over islands.
  enum Counter : int64_t {
    kStep,
    kRoundBegun,
    kRounds,
    kEvery,
    kLearningRate,
    kFirstMove,
    kInFlight,
    kPendingStep,
    kPendingMove,
    kPendingSteps,
    kCounters
  };
  double number(Counter which) const { return counters_.const_data_ptr<double>()[which]; }
  void set(Counter which, double value) { counters_.mutable_data_ptr<double>()[which] = value; }
  double now_s() const { return base::seconds(replica_.replica_group.world().clock().now()); }

  std::optional<base::Trace::Span> span(std::string_view what) const {
    return replica_.trace ? std::optional(replica_.trace->span(what, "sync")) : std::nullopt;
  }

  // The norm over all shards of the island's model.
  double norm_over_island(const at::Tensor& mine) const {
    double sum = mine.to(at::kDouble).square().sum().item<double>();
    if (replica_.model_group.size() > 1)
      replica_.model_group.all_reduce({&sum, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "norm"}).wait_host();
    return std::sqrt(sum);
  }

  // Sends `sent_`, this island's progress in the round, and the norm of its first step. Progress relative to the common start survives
  // coarse compression better than the parameters themselves.
  void start_exchange(double step) {
    const auto traced = span("send update");
    pending_ = std::make_unique<IslandMerge>(IslandMerge::Parts{.quorum = quorum_,
                                                                .compressor = last_ ? *exact_ : *compressor_,
                                                                .rule = rule_,
                                                                .step = static_cast<int64_t>(step),
                                                                .part = kMeans,
                                                                .note = number(kPendingMove),
                                                                .wants_to_stop = wants_to_stop_,
                                                                .in_background = sent_.is_cuda()},
                                             sent_);
    set(kInFlight, 1);
    set(kPendingStep, step);
  }

  // Waits for the pending mean: the only place where this rule waits. Undefined: the round failed.
  at::Tensor finish_exchange() {
    const double begun = now_s();
    at::Tensor mean;
    {
      const auto traced = pending_->progress() ? std::nullopt : span("wait for islands");
      mean = pending_->wait();
    }
    trouble_.note(pending_->ending(), static_cast<int64_t>(number(kStep)), quorum_.waiting_for());
    stall_s_ += now_s() - begun;
    bytes_ += pending_->bytes_sent();
    islands_ = pending_->included();
    const double note = pending_->note();
    stop_decided_ = stop_decided_ || pending_->stop();
    quorum_.close(pending_->step());
    pending_.reset();
    set(kInFlight, 0);
    if (!mean.defined()) return {};
    set(kPendingMove, note);
    return mean.to(start_.device());
  }

  // The outer step with the islands' mean progress.
  void apply_outer_step(const at::Tensor& mean, double gap) {
    const auto traced = span("outer step");
    momentum_.mul_(options_.outer_momentum).sub_(mean.mul(1 / gap));
    at::Tensor move = momentum_;
    double clipped = 0;
    if (options_.clip > 0) {
      const double most = options_.clip * number(kLearningRate) * number(kPendingSteps);
      clipped = momentum_.abs().gt(most).to(at::kDouble).mean().item<double>();
      move = momentum_.clamp(-most, most);
    }
    at::Tensor next = start_.sub(move.mul(options_.outer_lr));
    metrics_ = {{"islands", islands_},
                {"sync_bytes", static_cast<double>(bytes_)},
                {"stall_s", std::exchange(stall_s_, 0) + metric(metrics_, "stall_s")},
                {"gap", gap},
                {"clipped", clipped},
                {"outer_norm", mean.norm().item<double>()},
                {"every", number(kEvery)}};
    start_.copy_(next);
  }

  void end_round(int64_t step, int64_t steps) {
    const auto traced = span("end of a round");
    at::Tensor late;
    const double sent_steps = number(kPendingSteps);
    if (pending_) late = finish_exchange();
    const double late_move = number(kPendingMove);
    sent_.copy_(parameters_.flatten().sub_(start_));
    const at::Tensor begun = start_.clone();
    set(kPendingMove, number(kFirstMove));
    start_exchange(static_cast<double>(step));
    if (late.defined()) {
      double gap = options_.gap == StalenessGap::constant ? options_.gap_value : 1;
      if (options_.gap == StalenessGap::ratio && late_move > 0) gap = 1 + norm_over_island(start_ - before_) / (sent_steps * late_move);
      set(kPendingSteps, static_cast<double>(steps));
      apply_outer_step(late, gap);
    }
    set(kPendingSteps, static_cast<double>(steps));
    before_.copy_(begun);
    if (own_start_.defined()) {
      // Error feedback: what compression dropped stays in this island's start, and so in what it sends next.
      own_start_.copy_(start_ + (sent_ - pending_->as_sent().to(sent_.device())));
      if (!std::isfinite(own_start_.norm().item<double>())) own_start_.copy_(start_);
    }
    parameters_.assign(own_start_.defined() ? own_start_ : start_);
    set(kRoundBegun, static_cast<double>(step));
    set(kRounds, number(kRounds) + 1);
  }

  // With every = 0: how long an exchange takes, and how long a step. Islands average their times, so that all choose the same length.
  void time_traffic(int64_t step) {
    const MergeRule mean{};
    // The first exchange of all also waits until the islands have a leader, and is not timed.
    IslandMerge({.quorum = quorum_, .compressor = *exact_, .rule = mean, .step = step, .part = kFirst}, at::zeros({1}, at::kFloat)).wait();
    const double begun = now_s();
    IslandMerge trial(
        {.quorum = quorum_, .compressor = *compressor_, .rule = rule_, .step = step, .part = kTrial, .in_background = sent_.is_cuda()},
        parameters_.flatten());
    trial.wait();
    traffic_s_ = now_s() - begun;
  }
  void choose_every(int64_t step) {
    const double step_s = (now_s() - last_s_) / kTimed;
    at::Tensor times = at::empty({2}, at::kFloat);
    times[0].fill_(traffic_s_);
    times[1].fill_(step_s);
    const MergeRule mean{};
    IslandMerge merge({.quorum = quorum_, .compressor = *exact_, .rule = mean, .step = step, .part = kTimes}, times);
    times = merge.wait();
    int64_t every = options_.min_every;
    if (times.defined() && times[1].item<double>() > 0)
      every = std::max<int64_t>(every, static_cast<int64_t>(std::ceil(kMargin * times[0].item<double>() / times[1].item<double>())));
    set(kEvery, static_cast<double>(every));
    replica_.replica_group.world().log().info("co2: an exchange takes {:.3g} s, a step {:.3g} s: rounds of {} steps",
                                              times.defined() ? times[0].item<double>() : 0, times.defined() ? times[1].item<double>() : 0,
                                              every);
  }

  const Co2Options options_;
  Replica replica_;
  std::unique_ptr<const Compressor> compressor_, exact_;
  const MergeRule rule_;
  IslandMessenger messenger_;
  Quorum quorum_;
  FlatParameters parameters_;
  at::Tensor start_, before_, momentum_;  // of this round, of the one before; outer momentum
  at::Tensor sent_;                       // the progress in flight, for snapshots
  at::Tensor own_start_;                  // this island's start with its residual, for a wire that drops values; else undefined
  at::Tensor counters_;
  std::unique_ptr<IslandMerge> pending_;
  bool wants_to_stop_ = false, stop_decided_ = false;
  bool last_ = false;  // the exchange that ends the run
  RoundTrouble trouble_;
  int islands_ = 0;
  int64_t bytes_ = 0;
  double stall_s_ = 0, traffic_s_ = 0, last_s_ = 0;
  StepMetrics metrics_;
};

}  // namespace

std::unique_ptr<Sync> make_co2(const SyncOptions& options, Replica replica) { return std::make_unique<Co2>(options, replica); }

RuleKeys co2_keys() {
  using O = Co2Options;
  return keys_in(
      base::Schema<O>{
          "sync.island",
          "With kind = \"co2\": the mean of a round travels while the next one is trained, and is used one round late.",
          {{"every", &O::every, "Steps of a round. 0: as many as hide the traffic, measured at the start.", base::at_least(0)},
           {"min_every", &O::min_every, "With every = 0: at least this many.", base::at_least(1)},
           {"outer_lr", &O::outer_lr, "Learning rate of the outer step.", base::more_than(0)},
           {"outer_momentum", &O::outer_momentum, "Of the outer step.", base::between(0, 0.999)},
           {"gap", &O::gap, "What a late contribution is divided by: how far the islands have gone since, a constant, or nothing.",
            kStalenessGapNames},
           {"gap_value", &O::gap_value, "With gap = \"constant\".", base::at_least(1)},
           {"clip", &O::clip, "No number moves by more than this many full inner steps per step of the round. 0: no limit.",
            base::at_least(0)}}},
      &SyncOptions::co2);
}

}  // namespace cairn::sync
