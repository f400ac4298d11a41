// DiLoCo (Douillard et al. 2023, arXiv 2311.08105) and Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512).
//
// Every island m takes H inner steps alone. Then the distance that each has moved from the last common point becomes a gradient for an
// outer optimizer (SGD with Nesterov momentum), whose result is the next common point:
//
//   g = merge over islands m of (theta - theta_m)      theta: `anchor`, theta_m: the island's parameters, H: `every`
//   b <- mu b + g                                      mu: `outer_momentum`, b: `momentum`
//   theta <- theta - eta (mu b + g)                    eta: `outer_lr`
//
// The anchor is the model: bitwise identical on every island. "diloco" sends the whole model at once, and islands wait for it.
//
// "streaming_diloco" splits the model into fragments and sends one at a time while the islands train on. A fragment that is sent after
// step t is applied after step t + tau (`delay`) and blended with what the island has by then (alpha: `blend`):
//
//   theta_m <- alpha theta_m + (1 - alpha) theta
//
// Error feedback (`error_feedback`): what compression drops stays in the island's own weights and is part of its next message.
//
// The start. A fresh model moves far in its first steps, and islands drift apart. Up to step `start_after` they average their parameters
// after every step. Then, for `outer_warmup` rounds, the outer momentum grows from 0.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include <fmt/format.h>

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
#include "sync/islands/fragments.h"
#include "sync/islands/merge_rule.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

constexpr int64_t kOuterWarmup = 20;  // rounds

// This rank's shard of one fragment: its parameters one after the other.
struct Fragment {
  FlatParameters parameters;
  at::Tensor anchor, momentum;  // fp32
  at::Tensor sent;              // the update in flight, for snapshots; undefined: none
  at::Tensor residual;          // what compression dropped of the last update; undefined: nothing, or no error feedback
  int64_t last_sent = 0;        // step
};

class Diloco final : public Sync {
 public:
  Diloco(const SyncOptions& options, Replica replica, bool streaming)
      : options_(options.outer),
        replica_(replica),
        streaming_(streaming),
        delay_(streaming_ ? options.outer.delay : 0),
        blend_(streaming_ ? options.outer.blend : 0),
        outer_lr_(outer_lr_of(options)),
        outer_warmup_(options_.outer_warmup >= 0 ? options_.outer_warmup
                      : replica.steps == 0       ? kOuterWarmup
                                                 : std::min(kOuterWarmup, (replica.steps - options_.start_after) / options_.every)),
        compressor_(make_compressor({wire_of(options), options.exchange.keep, replica.seed})),
        exact_(make_compressor({"fp32"})),
        sparse_(is_sparse(wire_of(options))),
        rule_{options.exchange.merge, options.exchange.trim},
        split_(streaming_ ? split_into_fragments(replica.model, options_.fragment_layers, options_.pattern == FragmentPattern::strided,
                                                 options_.extras == ExtraParameters::own)
                          : single_fragment(replica.model)),
        step_(at::full({1}, -1, at::kLong)),
        in_flight_(at::zeros({split_.count}, at::kLong)),
        tokens_(at::zeros({split_.count}, at::kLong)),
        weights_(at::ones({split_.count}, at::kDouble)),
        pace_(at::zeros({2}, at::kDouble)),
        lineage_(at::zeros({2}, at::kLong)) {
    check();
    fragments_.resize(static_cast<size_t>(split_.count));
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; i < replica.model.size(); ++i) places[replica.model[i].name] = i;
    std::vector<std::vector<size_t>> parameters(fragments_.size());
    for (size_t i = 0; i < replica.parameters.size(); ++i)
      parameters[static_cast<size_t>(split_.of[places.at(replica.parameters[i].name)])].push_back(i);
    for (size_t f = 0; f < fragments_.size(); ++f) {
      Fragment& one = fragments_[f];
      one.parameters = FlatParameters(replica.parameters, std::move(parameters[f]), replica.barrier);
      one.anchor = one.parameters.zeros();
      one.momentum = one.parameters.zeros();
    }
    exchange_ = make_exchange({.options = options,
                               .replica = replica_,
                               .rule = rule_,
                               .rows = rows(places),
                               .outer_step = [this](const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& gradient,
                                                    int64_t step, const at::Tensor&) { outer_step(anchor, momentum, gradient, step); }});
    pace_[0].fill_(1);
  }

  int64_t begin(int64_t steps_done) override {
    const bool restored = steps_done > 0 && step_.item<int64_t>() == steps_done;
    for (const Fragment& one : fragments_)
      if (!restored) one.anchor.copy_(one.parameters.flatten());
    if (restored && replica_.steps > 0 && steps_done >= replica_.steps) return steps_done;  // the run has ended
    return take_up(exchange_->begin(steps_done, restored ? lineage() : IslandExchange::Lineage{}), restored);
  }

  // Goes on from where the islands are.
  int64_t take_up(const IslandExchange::StartPoint& start_point, bool restored) {
    lineage_[0].fill_(static_cast<int64_t>(start_point.epoch));
    lineage_[1].fill_(0);
    trouble_ = {};
    for (size_t f = 0; f < fragments_.size(); ++f) {
      Fragment& one = fragments_[f];
      one.last_sent = last_sent_before(start_point.step, static_cast<int>(f));
      if (start_point.state_replaced) one.parameters.assign(one.anchor);
      if (!restored || in_flight_[static_cast<int64_t>(f)].item<int64_t>() == 0 || exchange_->may_leave()) one.sent.reset();
    }
    std::vector<int> sends_now;
    // Fragments are applied in the order in which they were sent. Remote islands drop what was in flight when they ended: what each has
    // moved by is part of its next message.
    for (const int f : in_order_of_sending()) {
      Fragment& one = fragments_[static_cast<size_t>(f)];
      if (start_point.joined && under_way(start_point.step, f)) {
        if (one.last_sent == start_point.step)
          sends_now.push_back(f);  // this island is a member of rounds that begin now
        else
          pending_.push_back({f, one.last_sent + delay_, exchange_->expect(f, one.last_sent, f)});
      }
      if (restored && one.sent.defined()) start(f, one.last_sent, f);
    }
    if (start_point.state_replaced) {
      tokens_.zero_();
      began_ = start_point.joined ? start_point.step : 0;
    }
    if (exchange_->may_leave()) in_flight_.zero_();
    for (const int f : sends_now) send(f, start_point.step, f);
    step_.fill_(start_point.step);
    return start_point.step;
  }

  // A slow island skips steps evenly, so that the others need not wait.
  bool should_step(int64_t) override { return options_.pace != Pace::own || pace_[1].item<double>() + pace_[0].item<double>() > 1 - 1e-6; }
  void gradient_ready(int64_t) override {
    for (PendingFragment& pending : pending_) pending.exchange->progress();
  }

  bool progress(std::chrono::nanoseconds at_most) override {
    const auto have_come = [&] {
      bool all = true;
      for (const PendingFragment& pending : pending_) all = pending.exchange->progress() && all;
      return all;
    };
    return !pending_.empty() && !exchange_->wait(have_come, at_most);
  }

  comm::Work after_step(const StepFacts& facts) override {
    stop_decided_ = false;
    if (!facts.skipped) tokens_.add_(facts.tokens);
    if (!facts.skipped) time_step();
    pace_[1].fill_(std::max(-1.0, pace_[1].item<double>() + pace_[0].item<double>() - (facts.skipped ? 0 : 1)));
    exchange_->poll();
    apply_due(facts.step);
    if (!is_interrupted())
      for (int f = 0; f < split_.count; ++f)
        if (is_start(facts.step) || facts.step % options_.every == sent_at(f)) send(f, facts.step, f);
    apply_due(facts.step);
    for (PendingFragment& pending : pending_) pending.exchange->progress();
    if (!position_) step_.fill_(facts.step);
    ended_s_ = now_s();
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // each round finds out who is there (islands/quorum.h)

  void finish() override {
    if (is_interrupted()) return;
    const int64_t step = step_.item<int64_t>();
    while (!is_interrupted() && !pending_.empty()) apply_outer_step(blend_, step);
    if (is_interrupted()) return;
    // One last exchange of what the islands still have beside the anchor: steps since a fragment was last sent, or blended values. It goes
    // in fp32 where the wire drops values. It counts as of the next step, since the rounds of this one may be over.
    for (int f = 0; f < split_.count; ++f)
      if (fragments_[static_cast<size_t>(f)].last_sent < step || blend_ > 0 || sparse_) send(f, step + 1, split_.count + f);
    while (!is_interrupted() && !pending_.empty()) apply_outer_step(0, step);
    if (is_interrupted()) return;
    for (const Fragment& one : fragments_) one.parameters.assign(one.anchor);
  }
  void leave() override { exchange_->leave(step_.item<int64_t>()); }

  std::vector<at::Tensor> global_parameters() override { return by_parameter(&Fragment::anchor); }

  std::vector<ElementState> elements(int64_t step) override {
    std::vector<ElementState> all{{"momentum", std::vector<bool>(split_.of.size(), true), by_parameter(&Fragment::momentum)}};
    ElementState sent{"sent", {}, {}};
    for (const int f : split_.of) sent.of.push_back(under_way(step, f));
    for (size_t f = 0; f < fragments_.size(); ++f)  // a loader writes into it
      if (under_way(step, static_cast<int>(f)) && !fragments_[f].sent.defined()) fragments_[f].sent = at::zeros_like(fragments_[f].anchor);
    sent.mine = by_parameter(&Fragment::sent);
    if (delay_ > 0) all.push_back(std::move(sent));
    return all;
  }
  mesh::NamedTensors state() override {
    return {{"outer_step", step_},       {"outer_flying", in_flight_}, {"outer_tokens", tokens_},
            {"outer_weights", weights_}, {"outer_pace", pace_},        {"outer_lineage", lineage_}};
  }

  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return stop_decided_ || trouble_.ended || (wants_to_stop_ && exchange_->may_leave()); }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }
  std::optional<int64_t> take_new_position() override { return std::exchange(position_, std::nullopt); }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }

 private:
  struct PendingFragment {
    int fragment = 0;
    int64_t due = 0;
    std::unique_ptr<PendingExchange> exchange;
  };

  void check() const {
    const int64_t every = options_.every;
    if (sparse_ && !options_.error_feedback && replica_.model_group.rank() == 0)
      replica_.replica_group.world().log().warn(
          "sync.island.error_feedback = false: what the wire leaves out of a round is lost, which is most of what was learned in it");
    if (replica_.steps > 0 && replica_.steps <= options_.start_after)
      base::fail_input("sync.island.start_after = {}: the run has {} steps, so no round would take place: use less", options_.start_after,
                       replica_.steps);
    if (replica_.steps > 0 && replica_.steps < every)
      base::fail_input("sync.island.every = {}: the run has {} steps, so no round would take place: use less", every, replica_.steps);
    if (!streaming_) return;
    if (every % split_.count != 0) {
      const int64_t below = every / split_.count * split_.count;
      base::fail_input("sync.island.every = {} is not a multiple of {} fragments: use {}{}", every, split_.count,
                       below > 0 ? fmt::format("{} or ", below) : "", below + split_.count);
    }
    if (delay_ >= every)
      base::fail_input("sync.island.delay = {}: a fragment must arrive before it is sent again, {} steps later: use less", delay_, every);
  }

  // The step of each `every` at which a fragment leaves: evenly spaced, the last at the end.
  int64_t sent_at(int f) const { return (f + 1) * (options_.every / split_.count) % options_.every; }
  int64_t last_sent_before(int64_t step, int f) const {
    if (is_start(step)) return step;
    const int64_t last = step - ((step - sent_at(f)) % options_.every + options_.every) % options_.every;
    return std::max<int64_t>(last, options_.start_after);
  }
  bool under_way(int64_t step, int f) const {
    const int64_t last = last_sent_before(step, f);
    return last > 0 && !is_start(last) && step < last + delay_;
  }
  // Whether islands may join by this round. One that joins takes part from the next step on.
  bool admits(int f, int64_t step) const {
    return (replica_.steps == 0 || step + delay_ < replica_.steps) && (!is_start(step) || f + 1 == split_.count);
  }
  // Whether the islands average after this step.
  bool is_start(int64_t step) const { return step <= options_.start_after; }
  std::vector<int> in_order_of_sending() const {
    std::vector<int> order(fragments_.size());
    for (size_t f = 0; f < order.size(); ++f) order[f] = static_cast<int>(f);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return fragments_[static_cast<size_t>(a)].last_sent < fragments_[static_cast<size_t>(b)].last_sent;
    });
    return order;
  }

  // A function of the round that `step` lies in, so a resumed run needs no counter.
  double momentum_at(int64_t step) const {
    const double round = static_cast<double>((step - 1 - options_.start_after) / options_.every), full = static_cast<double>(outer_warmup_);
    return options_.outer_momentum * (round < full ? round / full : 1);
  }

  std::vector<at::Tensor> by_parameter(at::Tensor Fragment::*member) const {
    std::vector<at::Tensor> all(replica_.parameters.size());
    for (const Fragment& one : fragments_) one.parameters.views(one.*member, all);
    return all;
  }

  // Right after the update of `step`: sends a copy of what the island has moved by. The island trains on.
  void send(int f, int64_t step, int part) {
    Fragment& one = fragments_[static_cast<size_t>(f)];
    one.sent = one.anchor - one.parameters.flatten();
    drift_ = relative_norm(one.sent, one.anchor);
    const at::Tensor tokens = tokens_[f];
    // An island that joined a run in progress counts from its first full interval on.
    const bool whole = began_ == 0 || is_start(step) || step - began_ >= options_.every;
    weights_[f].fill_(!whole ? 0 : options_.weights == IslandWeights::tokens ? std::max<double>(1, tokens.item<double>()) : 1);
    tokens.zero_();
    one.last_sent = step;
    start(f, step, part);
  }
  void start(int f, int64_t step, int part) {
    Fragment& one = fragments_[static_cast<size_t>(f)];
    auto exchange = exchange_->send({.fragment = f,
                                     .compressor = is_start(step) || (sparse_ && part >= split_.count) ? exact_.get() : compressor_.get(),
                                     .step = step,
                                     .part = part,
                                     .weight = weights_[f].item<double>(),
                                     .note = step_s_,
                                     .wants_to_stop = wants_to_stop_ && !exchange_->may_leave(),
                                     .admits = admits(f, step)},
                                    one.sent);
    in_flight_[f].fill_(1);
    pending_.push_back({f, step + (is_start(step) ? 0 : delay_), std::move(exchange)});
  }

  IslandExchange::Lineage lineage() const { return {static_cast<uint64_t>(lineage_[0].item<int64_t>()), lineage_[1].item<int64_t>() != 0}; }
  bool is_interrupted() const { return position_ || trouble_.ended; }  // no more rounds in this step

  // The round has no result on this island. What is in flight is dropped: what the island has moved by is part of its next message.
  void give_up_rounds(RoundEnding ending, int64_t now) {
    pending_.clear();
    for (Fragment& one : fragments_) one.sent.reset(), one.residual.reset();
    in_flight_.zero_();
    if (ending == RoundEnding::rejoin) {
      const IslandExchange::StartPoint start_point = exchange_->begin_again(now, lineage());
      ending = start_point.ending;
      if (ending == RoundEnding::decided) position_ = take_up(start_point, false);
    }
    trouble_.note(ending, now, exchange_->waiting_for());
  }

  void apply_due(int64_t step) {
    while (!is_interrupted() && !pending_.empty() && pending_.front().due <= step) apply_outer_step(is_start(step) ? 0 : blend_, step);
  }
  // Waits for the oldest fragment in flight and takes the outer step with it.
  void apply_outer_step(double blend, int64_t now) {
    PendingFragment pending = std::move(pending_.front());
    pending_.pop_front();
    Fragment& one = fragments_[static_cast<size_t>(pending.fragment)];
    at::Tensor gradient;
    const base::Clock& clock = replica_.replica_group.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    {
      std::optional<base::Trace::Span> traced;
      if (replica_.trace && !pending.exchange->progress()) traced.emplace(replica_.trace->span("wait for islands", "sync"));
      gradient = pending.exchange->wait();
    }
    stall_s_ += base::seconds(clock.now() - begun);
    const PendingExchange::Outcome& outcome = pending.exchange->outcome();
    const int64_t step = pending.exchange->step();
    if (const RoundEnding ending = outcome.ending; ending == RoundEnding::alone) {
      trouble_.note(ending, now, "");
      lineage_[1].fill_(1);
    } else if (ending != RoundEnding::decided) {
      pending.exchange.reset();  // it reads messages that go away with this island's incarnation
      return give_up_rounds(ending, now);
    }
    stop_decided_ = stop_decided_ || outcome.stop;
    if (options_.error_feedback && one.sent.defined() && gradient.defined()) one.residual = residual_of(one, *pending.exchange);
    one.sent.reset();
    in_flight_[pending.fragment].fill_(0);
    bytes_ += outcome.bytes_sent;
    if (pending_.empty() || pending_.front().exchange->step() > step) exchange_->close(step);
    if (gradient.defined())
      apply_update(one, pending, gradient, blend);
    else if (replica_.model_group.rank() == 0 && replica_.replica_group.rank() == 0)
      replica_.replica_group.world().log().warn(
          "step {}: the round failed: no island's message reached all others in time with finite numbers. What was learned is part of the "
          "next round. If this repeats, raise sync.island.timeout_s or check the link",
          step);
    exchange_->on_applied(*pending.exchange, now);
    if (options_.pace == Pace::own) keep_pace(outcome.least_note);
  }

  // What compression dropped of what this island sent. It stays in the island's weights, so the next message, anchor minus weights, has it
  // again. Usual error feedback keeps the residual apart from the weights; but islands move far in a round and would repeat the same move
  // in every round until a value is sent.
  static at::Tensor residual_of(const Fragment& one, PendingExchange& exchange) {
    at::Tensor residual = one.sent - exchange.as_sent().to(one.sent.device());
    return std::isfinite(residual.norm().item<double>()) ? residual : at::Tensor();
  }

  void apply_update(Fragment& one, const PendingFragment& pending, at::Tensor gradient, double blend) {
    gradient = gradient.to(one.anchor.device());
    const double along = cosine(gradient, one.momentum);
    for (const at::Tensor& written : {one.anchor, one.momentum}) mesh::before_write(replica_.barrier, written);
    outer_step(one.anchor, one.momentum, gradient, pending.exchange->step());
    at::Tensor next = one.residual.defined() ? one.anchor - one.residual : one.anchor;
    one.residual.reset();
    if (blend > 0) next = one.parameters.flatten().mul_(blend).add_(next.mul(1 - blend));
    one.parameters.assign(next);
    metrics_ = {{"fragment", pending.fragment},
                {"islands", pending.exchange->outcome().included},
                {"sync_bytes", static_cast<double>(bytes_)},
                {"stall_s", std::exchange(stall_s_, 0) + metric(metrics_, "stall_s")},  // includes other fragments of this step
                {"outer_norm", gradient.norm().item<double>()},
                {"outer_cosine", along},
                {"drift", drift_}};
    if (options_.pace == Pace::own) metrics_.emplace_back("pace", pace_[0].item<double>());
  }

  // Products and sums stay unfused: the anchor must be bitwise identical on all kinds of machines.
  void outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& gradient, int64_t step) const {
    if (is_start(step)) {  // the mean
      anchor.sub_(gradient);
      return;
    }
    const double keep = momentum_at(step);
    momentum.mul_(keep).add_(gradient);
    anchor.sub_(momentum.mul(keep).add_(gradient).mul_(outer_lr_));
  }

  double now_s() const { return base::seconds(replica_.model_group.world().clock().now()); }

  // Moving mean of the seconds that a step takes here, without waits.
  void time_step() {
    const double took = now_s() - ended_s_;
    if (ended_s_ > 0) step_s_ = step_s_ > 0 ? 0.8 * step_s_ + 0.2 * took : took;
  }

  // Sets which share of the steps this island takes, so that it keeps up with the fastest, which takes all of them.
  void keep_pace(double fastest) {
    std::array<double, 1> share{step_s_ > 0 && fastest > 0 ? std::clamp(fastest / step_s_, 0.05, 1.0) : 1};
    if (share[0] > 0.9) share[0] = 1;  // timings are no more precise than that
    if (replica_.model_group.size() > 1)
      replica_.model_group.broadcast({share.data(), 1, comm::Dtype::f64}, 0, {comm::Purpose::control, "the pace of this island"}).wait();
    pace_[0].fill_(share[0]);
  }

  // The parameters of each fragment: all of the model's, and those of which this rank has a shard.
  std::vector<FragmentRows> rows(const std::map<std::string_view, size_t>& places) const {
    std::vector<FragmentRows> all(fragments_.size());
    for (size_t place = 0; place < split_.of.size(); ++place) all[static_cast<size_t>(split_.of[place])].whole.push_back(place);
    for (const mesh::NamedTensor& one : replica_.parameters) {
      const size_t place = places.at(one.name);
      FragmentRows& rows = all[static_cast<size_t>(split_.of[place])];
      CAIRN_CHECK(rows.own.empty() || rows.own.back() < place, "{} is out of order", one.name);
      rows.own.push_back(place);
      rows.own_elements.push_back(one.tensor.numel());
    }
    for (size_t f = 0; f < all.size(); ++f) {
      all[f].anchor = fragments_[f].anchor;
      all[f].momentum = fragments_[f].momentum;
    }
    return all;
  }

  const OuterOptions options_;
  Replica replica_;
  const bool streaming_;
  const int64_t delay_;
  const double blend_, outer_lr_;
  const int64_t outer_warmup_;
  std::unique_ptr<const Compressor> compressor_, exact_;
  const bool sparse_;
  const MergeRule rule_;
  Fragments split_;
  std::vector<Fragment> fragments_;
  std::unique_ptr<IslandExchange> exchange_;
  std::deque<PendingFragment> pending_;  // in the order in which they were sent
  at::Tensor step_;                      // that this state belongs to
  at::Tensor in_flight_;                 // by fragment: 1 while an update is in flight
  at::Tensor tokens_;                    // by fragment: tokens learned from since it was last sent
  at::Tensor weights_;                   // by fragment: the weight of the update in flight
  at::Tensor pace_;                      // the share of the steps that this island takes, and the share of a step that it has saved up
  at::Tensor lineage_;                   // the epoch that the anchor belongs to; 1: this island has trained alone since
  bool wants_to_stop_ = false, stop_decided_ = false;
  std::optional<int64_t> position_;  // after coming back to the others
  RoundTrouble trouble_;
  int64_t bytes_ = 0;
  int64_t began_ = 0;                // the step after which this island joined the run; 0: at the start
  double step_s_ = 0, ended_s_ = 0;  // seconds of a step; when the last one ended
  double stall_s_ = 0, drift_ = 0;
  StepMetrics metrics_;
};

}  // namespace

std::unique_ptr<Sync> make_diloco(const SyncOptions& options, Replica replica) {
  return std::make_unique<Diloco>(options, replica, /*streaming=*/false);
}
std::unique_ptr<Sync> make_streaming_diloco(const SyncOptions& options, Replica replica) {
  return std::make_unique<Diloco>(options, replica, /*streaming=*/true);
}

}  // namespace cairn::sync
