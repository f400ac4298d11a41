#include "sync/co2.h"

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
#include "sync/options.h"

namespace cairn::sync {
namespace {

constexpr int64_t kTimed = 20;   // steps that are timed before the length of a round is chosen
constexpr double kMargin = 1.2;  // of it over what the traffic takes
constexpr int32_t kMeans = 0, kTimes = 1, kTrial = 2;

class Co2 final : public Sync {
 public:
  Co2(const SyncOptions& options, Replica replica)
      : options_(options.co2),
        replica_(replica),
        compressor_(make_compressor({wire_of(options), options.exchange.keep, replica.seed})),
        exact_(make_compressor({"fp32"})),
        rule_{options.exchange.merge, options.exchange.trim},
        messenger_({in_world_link(replica.replica_group), signature_of(options, replica), max_message_bytes(replica), is_on_gpu(replica)}),
        quorum_(messenger_, std::chrono::nanoseconds(static_cast<int64_t>(options.exchange.timeout_s * 1e9))),
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

  void on_membership(const Membership&) override {}  // rounds find out for themselves who is there

  // The last round may be short; then both means that are still under way are taken in, so that nothing learned is lost.
  void finish() override {
    const auto step = static_cast<int64_t>(number(kStep));
    if (const int64_t in_round = step - static_cast<int64_t>(number(kRoundBegun)); in_round > 0) end_round(step, in_round);
    if (!pending_) return;
    const at::Tensor residual = own_start_.defined() ? parameters_.flatten().sub_(start_) : at::Tensor();
    if (const at::Tensor mean = finish_exchange(); mean.defined()) apply_outer_step(mean, 1);
    if (residual.defined()) {  // all of it, this time
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
  bool should_stop() const override { return stop_decided_; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // Small numbers that a restart needs. Moves are norms: of the first step of this round, and of the last one as the islands averaged it.
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

  // Over all shards of the island's model.
  double norm_over_island(const at::Tensor& mine) const {
    double sum = mine.to(at::kDouble).square().sum().item<double>();
    if (replica_.model_group.size() > 1)
      replica_.model_group.all_reduce({&sum, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "norm"}).wait_host();
    return std::sqrt(sum);
  }

  // How far this island has come in the round leaves, as a copy, with the length of its first step. The point that it started from is the
  // same on all islands, so that this says where it stands, in numbers that survive a coarse wire.
  void start_exchange(double step) {
    const auto traced = span("send off");
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

  // Waits for the mean that is under way: the only place where anybody waits.
  at::Tensor finish_exchange() {
    const double begun = now_s();
    at::Tensor mean;
    {
      const auto traced = pending_->progress() ? std::nullopt : span("wait for islands");
      mean = pending_->wait();
    }
    stall_s_ += now_s() - begun;
    bytes_ += pending_->bytes_sent();
    islands_ = pending_->counted();
    const double note = pending_->note();
    stop_decided_ = stop_decided_ || pending_->stop();
    quorum_.close(pending_->step());
    pending_.reset();
    set(kInFlight, 0);
    if (!mean.defined()) return {};
    set(kPendingMove, note);
    return mean.to(start_.device());
  }

  // The outer step, with how far the islands came on average.
  void apply_outer_step(const at::Tensor& mean, double gap) {
    const auto traced = span("take in");
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
      double gap = options_.gap == "constant" ? options_.gap_value : 1;
      if (options_.gap == "ratio" && late_move > 0) gap = 1 + norm_over_island(start_ - before_) / (sent_steps * late_move);
      set(kPendingSteps, static_cast<double>(steps));
      apply_outer_step(late, gap);
    }
    set(kPendingSteps, static_cast<double>(steps));
    before_.copy_(begun);
    if (own_start_.defined()) {
      // What the wire leaves out the island keeps, so that it is part of what it sends next.
      own_start_.copy_(start_ + (sent_ - pending_->as_sent().to(sent_.device())));
      if (!std::isfinite(own_start_.norm().item<double>())) own_start_.copy_(start_);
    }
    parameters_.assign(own_start_.defined() ? own_start_ : start_);
    set(kRoundBegun, static_cast<double>(step));
    set(kRounds, number(kRounds) + 1);
  }

  // With every = 0: how long a whole exchange takes, and how long a step; all islands must choose alike.
  void time_traffic(int64_t step) {
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
    replica_.replica_group.world().log().info("co2: the means of islands travel for {:.3g} s, a step takes {:.3g} s: rounds of {} steps",
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
  at::Tensor sent_;                       // what is under way, for snapshots
  at::Tensor own_start_;                  // where this island began the round, with a wire that leaves numbers out; else undefined
  at::Tensor counters_;
  std::unique_ptr<IslandMerge> pending_;
  bool wants_to_stop_ = false, stop_decided_ = false;
  bool last_ = false;  // the exchange that ends the run
  int islands_ = 0;
  int64_t bytes_ = 0;
  double stall_s_ = 0, traffic_s_ = 0, last_s_ = 0;
  StepMetrics metrics_;
};

}  // namespace

std::unique_ptr<Sync> make_co2(const SyncOptions& options, Replica replica) { return std::make_unique<Co2>(options, replica); }

}  // namespace cairn::sync
