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
//
// Remote islands: rounds decide who takes part, as DiLoCo's do. An island that joins gets x, b and the shared numbers below, and counts
// with weight 0 in the round that is in flight then. After a restart of all each sends again what it had in flight.
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "sync/islands/compressor.h"
#include "sync/islands/exchange.h"
#include "sync/islands/flat_parameters.h"
#include "sync/islands/merge_rule.h"
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
        parameters_(replica.parameters, replica.barrier),
        start_(parameters_.zeros()),
        momentum_(parameters_.zeros()),
        sent_(parameters_.zeros()),
        counters_(at::zeros({kCounters}, at::kDouble)),
        lineage_(at::zeros({2}, at::kLong)) {
    set(kStep, -1);
    exchange_ = make_exchange(
        {.options = options,
         .replica = replica_,
         .rule = rule_,
         .rows = {rows()},
         .outer_step =
             [this](const at::Tensor& start, const at::Tensor& momentum, const at::Tensor& mean, int64_t, const at::Tensor& numbers) {
               const double* n = numbers.const_data_ptr<double>();
               start.copy_(moved(start, momentum, mean, n[kGap], n[kMostMove]));
             },
         .numbers = counters_.narrow(0, 0, kShared)});
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
      lineage_.zero_();
      set(kRoundBegun, static_cast<double>(steps_done));
      set(kEvery, static_cast<double>(options_.every));
    }
    if (restored && replica_.steps > 0 && steps_done >= replica_.steps) return steps_done;  // the run has ended
    const int64_t begun = take_up(exchange_->begin(steps_done, lineage()));
    if (number(kEvery) == 0 && begun == static_cast<int64_t>(number(kRoundBegun))) time_traffic(begun);
    last_s_ = now_s();
    return begun;
  }

  void gradient_ready(int64_t) override {
    if (pending_) pending_->progress();
  }

  bool progress(std::chrono::nanoseconds at_most) override {
    return pending_ && !exchange_->wait([&] { return pending_->progress(); }, at_most);
  }

  comm::Work after_step(const StepFacts& facts) override {
    stop_decided_ = false;
    exchange_->poll();
    const auto in_round = facts.step - static_cast<int64_t>(number(kRoundBegun));
    if (in_round == 1) {
      set(kLearningRate, facts.learning_rate);
      set(kFirstMove, exchange_->norm(parameters_.flatten().sub_(own_start_.defined() ? own_start_ : start_)));
    }
    if (number(kEvery) == 0 && in_round == kTimed) choose_every(facts.step);
    if (number(kEvery) > 0 && in_round >= static_cast<int64_t>(number(kEvery))) end_round(facts.step, in_round);
    if (pending_) pending_->progress();
    if (!position_) set(kStep, static_cast<double>(facts.step));
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // each round finds out who is there (islands/quorum.h)

  // The last round may be short. Both exchanges that are still pending are applied, so that nothing learned is lost.
  void finish() override {
    const auto step = static_cast<int64_t>(number(kStep));
    if (is_interrupted()) return;
    if (const int64_t in_round = step - static_cast<int64_t>(number(kRoundBegun)); in_round > 0) end_round(step, in_round);
    if (is_interrupted() || !pending_) return;
    const at::Tensor residual = own_start_.defined() ? parameters_.flatten().sub_(start_) : at::Tensor();
    last_ = true;
    apply_last(step);
    if (is_interrupted()) return;
    if (residual.defined()) {  // in fp32, this time
      mesh::before_write(replica_.barrier, sent_);
      sent_.copy_(residual);
      start_exchange(static_cast<double>(step + 1));
      apply_last(step);
      if (is_interrupted()) return;
    }
    parameters_.assign(start_);
  }
  void leave() override { exchange_->leave(static_cast<int64_t>(number(kStep))); }

  std::vector<at::Tensor> global_parameters() override { return parameters_.views(start_); }
  std::vector<ElementState> elements(int64_t) override {
    const std::vector<bool> all(replica_.model.size(), true);
    return {{"momentum", all, parameters_.views(momentum_)}, {"sent", all, parameters_.views(sent_)}};
  }
  mesh::NamedTensors state() override { return {{"outer_counters", counters_}, {"outer_lineage", lineage_}}; }

  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return stop_decided_ || trouble_.ended || (wants_to_stop_ && exchange_->may_leave()); }
  std::optional<int64_t> take_new_position() override { return std::exchange(position_, std::nullopt); }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // Small numbers that a restart needs. The first ones belong to the model: they are identical on all islands.
  enum Counter : int64_t {
    kRoundBegun,    // step
    kRounds,        // that are over
    kEvery,         // tau; 0: not chosen yet
    kInFlight,      // 1: a round's progress travels...
    kPendingStep,   // ...that was sent after this step...
    kPendingSteps,  // ...and is the result of so many
    kLastMove,      // |x_t - x_(t-1)|
    kGap,           // of the last outer step
    kMostMove,      // the limit of the last outer step; 0: none
    kShared,
    kStep = kShared,
    kLearningRate,
    kFirstMove,    // |first step of this round|
    kPendingMove,  // the same of the round in flight
    kCounters
  };
  double number(Counter which) const { return counters_.const_data_ptr<double>()[which]; }
  void set(Counter which, double value) { counters_.mutable_data_ptr<double>()[which] = value; }
  double now_s() const { return base::seconds(replica_.replica_group.world().clock().now()); }
  bool is_interrupted() const { return position_ || trouble_.ended; }  // no more rounds in this step
  IslandExchange::Lineage lineage() const { return {static_cast<uint64_t>(lineage_[0].item<int64_t>()), lineage_[1].item<int64_t>() != 0}; }

  std::optional<base::Trace::Span> span(std::string_view what) const {
    return replica_.trace ? std::optional(replica_.trace->span(what, "sync")) : std::nullopt;
  }

  FragmentRows rows() const {
    FragmentRows rows{.whole = {}, .own = {}, .own_elements = {}, .anchor = start_, .momentum = momentum_};
    std::map<std::string_view, size_t> places;
    for (size_t place = 0; place < replica_.model.size(); ++place) {
      places[replica_.model[place].name] = place;
      rows.whole.push_back(place);
    }
    for (const mesh::NamedTensor& one : replica_.parameters) {
      rows.own.push_back(places.at(one.name));
      rows.own_elements.push_back(one.tensor.numel());
    }
    return rows;
  }

  // Goes on from where the islands are.
  int64_t take_up(const IslandExchange::StartPoint& start_point) {
    lineage_[0].fill_(static_cast<int64_t>(start_point.epoch));
    lineage_[1].fill_(0);
    trouble_ = {};
    if (start_point.state_replaced) {
      sent_.zero_();
      parameters_.assign(start_);
    }
    weight_ = start_point.state_replaced ? 0 : 1;  // it has nothing in flight
    if (number(kInFlight) > 0) start_exchange(number(kPendingStep));
    if (own_start_.defined()) own_start_.copy_(parameters_.flatten());
    set(kStep, static_cast<double>(start_point.step));
    return start_point.step;
  }

  // Sends `sent_`, this island's progress in the round, and the norm of its first step. Progress relative to the common start survives
  // coarse compression better than the parameters themselves.
  void start_exchange(double step) {
    const auto traced = span("send update");
    // An island that joins by a round takes part from its end on, when the next one is over.
    const bool ends = replica_.steps > 0 && step + number(kEvery) >= static_cast<double>(replica_.steps);
    pending_ = exchange_->send({.fragment = 0,
                                .compressor = last_ ? exact_.get() : compressor_.get(),
                                .step = static_cast<int64_t>(step),
                                .part = kMeans,
                                .weight = std::exchange(weight_, 1),
                                .note = number(kPendingMove),
                                .wants_to_stop = wants_to_stop_ && !exchange_->may_leave(),
                                .admits = !ends},
                               sent_);
    set(kInFlight, 1);
    set(kPendingStep, step);
  }

  // Waits for the pending mean: the only place where this rule waits. Undefined: the round failed, or has no result on this island.
  at::Tensor finish_exchange(int64_t now) {
    const double begun = now_s();
    at::Tensor mean;
    {
      const auto traced = pending_->progress() ? std::nullopt : span("wait for islands");
      mean = pending_->wait();
    }
    const PendingExchange::Outcome outcome = pending_->outcome();
    stall_s_ += now_s() - begun;
    bytes_ += outcome.bytes_sent;
    islands_ = outcome.included;
    if (outcome.ending == RoundEnding::alone) {
      trouble_.note(outcome.ending, now, "");
      lineage_[1].fill_(1);
    } else if (outcome.ending != RoundEnding::decided) {
      pending_.reset();  // it reads messages that go away with this island's incarnation
      give_up_round(outcome.ending, now);
      return {};
    }
    stop_decided_ = stop_decided_ || outcome.stop;
    exchange_->close(pending_->step());
    set(kInFlight, 0);
    if (!mean.defined()) return {};
    set(kPendingMove, outcome.note);
    return mean.to(start_.device());
  }

  void give_up_round(RoundEnding ending, int64_t now) {
    if (ending == RoundEnding::rejoin) {
      const IslandExchange::StartPoint start_point = exchange_->begin_again(now, lineage());
      ending = start_point.ending;
      if (ending == RoundEnding::decided) position_ = take_up(start_point);
    }
    trouble_.note(ending, now, exchange_->waiting_for());
  }

  // x_(t+1), and b in place. Products and sums stay unfused: x must be bitwise identical on all kinds of machines.
  at::Tensor moved(const at::Tensor& start, const at::Tensor& momentum, const at::Tensor& mean, double gap, double most) const {
    momentum.mul_(options_.outer_momentum).sub_(mean.mul(1 / gap));
    const at::Tensor move = most > 0 ? momentum.clamp(-most, most) : momentum;
    return start.sub(move.mul(options_.outer_lr));
  }

  // The outer step with the islands' mean progress.
  void apply_outer_step(const at::Tensor& mean, double gap) {
    const auto traced = span("outer step");
    const double most = options_.clip > 0 ? options_.clip * number(kLearningRate) * number(kPendingSteps) : 0;
    set(kGap, gap);
    set(kMostMove, most);
    for (const at::Tensor& written : {start_, momentum_}) mesh::before_write(replica_.barrier, written);
    const at::Tensor next = moved(start_, momentum_, mean, gap, most);
    const double clipped = most > 0 ? momentum_.abs().gt(most).to(at::kDouble).mean().item<double>() : 0;
    metrics_ = {{"islands", islands_},
                {"sync_bytes", static_cast<double>(bytes_)},
                {"stall_s", std::exchange(stall_s_, 0) + metric(metrics_, "stall_s")},
                {"gap", gap},
                {"clipped", clipped},
                {"outer_norm", mean.norm().item<double>()},
                {"every", number(kEvery)}};
    set(kLastMove, options_.gap == StalenessGap::ratio ? exchange_->norm(next.sub(start_)) : 0);
    start_.copy_(next);
  }

  // After the last step.
  void apply_last(int64_t step) {
    const at::Tensor mean = finish_exchange(step);
    if (is_interrupted()) return;
    if (mean.defined()) apply_outer_step(mean, 1);
    exchange_->on_applied(*pending_, step);
    pending_.reset();
  }

  void end_round(int64_t step, int64_t steps) {
    const auto traced = span("end of a round");
    at::Tensor late;
    const double sent_steps = number(kPendingSteps);
    std::unique_ptr<PendingExchange> applied;
    if (pending_) {
      late = finish_exchange(step);
      if (is_interrupted()) return;
      applied = std::move(pending_);
    }
    const double late_move = number(kPendingMove), last_move = number(kLastMove);
    mesh::before_write(replica_.barrier, sent_);
    sent_.copy_(parameters_.flatten().sub_(start_));
    set(kPendingMove, number(kFirstMove));
    start_exchange(static_cast<double>(step));
    set(kPendingSteps, static_cast<double>(steps));
    set(kLastMove, 0);
    if (late.defined()) {
      double gap = options_.gap == StalenessGap::constant ? options_.gap_value : 1;
      if (options_.gap == StalenessGap::ratio && late_move > 0) gap = 1 + last_move / (sent_steps * late_move);
      apply_outer_step(late, gap);
    }
    if (own_start_.defined()) {
      // Error feedback: what compression dropped stays in this island's start, and so in what it sends next.
      own_start_.copy_(start_ + (sent_ - pending_->as_sent().to(sent_.device())));
      if (!std::isfinite(own_start_.norm().item<double>())) own_start_.copy_(start_);
    }
    parameters_.assign(own_start_.defined() ? own_start_ : start_);
    set(kRoundBegun, static_cast<double>(step));
    set(kRounds, number(kRounds) + 1);
    if (applied) exchange_->on_applied(*applied, step);
  }

  // With every = 0: how long an exchange takes, and how long a step. Islands average their times, so that all choose the same length.
  void time_traffic(int64_t step) {
    // The first exchange of all also waits until the islands have a leader, and is not timed.
    exchange_->mean_of_numbers(at::zeros({1}, at::kFloat), step, kFirst);
    const double begun = now_s();
    exchange_->send({.fragment = 0, .compressor = compressor_.get(), .step = step, .part = kTrial, .admits = false}, parameters_.flatten())
        ->wait();
    traffic_s_ = now_s() - begun;
  }
  void choose_every(int64_t step) {
    at::Tensor times = at::empty({2}, at::kFloat);
    times[0].fill_(traffic_s_);
    times[1].fill_((now_s() - last_s_) / kTimed);
    times = exchange_->mean_of_numbers(times, step, kTimes);
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
  FlatParameters parameters_;
  at::Tensor start_, momentum_;  // of this round; outer momentum
  at::Tensor sent_;              // the progress in flight, for snapshots
  at::Tensor own_start_;         // this island's start with its residual, for a wire that drops values; else undefined
  at::Tensor counters_;
  at::Tensor lineage_;  // the epoch that x belongs to (islands/decision_log.h); 1: this island has trained alone since
  std::unique_ptr<IslandExchange> exchange_;
  std::unique_ptr<PendingExchange> pending_;
  double weight_ = 1;  // of the next update
  bool wants_to_stop_ = false, stop_decided_ = false;
  bool last_ = false;  // the exchange that ends the run
  std::optional<int64_t> position_;
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
