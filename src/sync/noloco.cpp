// NoLoCo (Kolehmainen et al. 2025, arXiv 2506.10911): low communication without a collective over all islands.
//
// In every round each island i averages with the few others of a group G that is drawn anew (islands/pairing.h); nobody waits for anyone
// outside its group. phi_i are the slow weights, theta_i the weights after the inner steps, D_i = theta_i - phi_i the progress:
//
//   d_i   <- alpha d_i + beta mean_G(D) - gamma (phi_i - mean_G(phi))
//   phi_i <- phi_i + d_i
//   theta_i <- phi_i
//
// Ours: d `momentum_`, phi `slow_`, alpha `outer_momentum`, beta `outer_lr`, gamma `pull`. The last term pulls an island towards its group,
// so islands stay close without ever being identical. `contraction` (islands/pairing.h) refuses coefficients with which they would spread.
//
// Slow weights do not change during a round and the next group is known, so they travel while the islands train (`prefetch_slow`). A group
// goes on without a member that is late or lost: that round uses the island's own progress alone.
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/compressor.h"
#include "sync/islands/flat_parameters.h"
#include "sync/islands/merge.h"
#include "sync/islands/messenger.h"
#include "sync/islands/pairing.h"
#include "sync/islands/quorum.h"
#include "sync/islands/replica_signature.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

using Kind = MessageTag::Kind;

class Noloco final : public Sync {
 public:
  Noloco(const SyncOptions& options, Replica replica)
      : options_(options.noloco),
        pull_(pull_of(options.noloco)),
        timeout_(static_cast<int64_t>(options.exchange.timeout_s * 1e9)),
        replica_(replica),
        compressor_(make_compressor({wire_of(options)})),
        exact_(make_compressor({"fp32"})),
        messenger_({in_world_link(replica.replica_group), signature_of(options, replica), max_message_bytes(replica)}),
        quorum_(messenger_, quorum_options(options, replica)),
        parameters_(replica.parameters),
        slow_(parameters_.zeros()),
        momentum_(parameters_.zeros()),
        step_(at::full({1}, -1, at::kLong)) {
    const auto group = static_cast<int>(options_.group);
    if (group > messenger_.size() && messenger_.size() > 1)
      base::fail_input("sync.island.group = {}: there are {} islands", group, messenger_.size());
    if (const double factor = contraction(options_.outer_momentum, pull_, group); factor >= 1)
      base::fail_input(
          "sync.island.pull = {} with outer_momentum = {}: the islands would drift apart ({:.3g} times the spread after every round): with "
          "this momentum the pull must lie between 0 and {:.3g}",
          pull_, options_.outer_momentum, factor, strongest_pull(options_.outer_momentum, group));
    if (replica.steps > 0 && replica.steps < options_.every)
      base::fail_input("sync.island.every = {}: the run has {} steps, so no round would take place: use less", options_.every,
                       replica.steps);
  }

  int64_t begin(int64_t steps_done) override {
    if (steps_done == 0 || step_.item<int64_t>() != steps_done) slow_.copy_(parameters_.flatten());
    step_.fill_(steps_done);
    if (options_.prefetch_slow) send_slow(steps_done / options_.every + 1);
    return steps_done;
  }

  void gradient_ready(int64_t) override { messenger_.pump(); }

  comm::Work after_step(const StepFacts& facts) override {
    step_.fill_(facts.step);
    if (facts.step % options_.every == 0) round(facts.step / options_.every);
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // a round goes on without an island that is lost

  void finish() override {
    const at::Tensor own = parameters_.flatten();
    slow_.copy_(own);
    if (options_.final_model == NolocoFinal::one || messenger_.size() == 1) return;
    // The only exchange among all islands.
    const MergeRule mean{};
    IslandMerge merge({.quorum = quorum_, .compressor = *exact_, .rule = mean, .step = step_.item<int64_t>() + 1}, own.cpu());
    const at::Tensor merged = merge.wait();
    trouble_.note(merge.ending(), step_.item<int64_t>(), quorum_.waiting_for());
    if (!merged.defined()) return;
    slow_.copy_(merged);
    parameters_.assign(slow_);
  }

  std::vector<at::Tensor> global_parameters() override { return parameters_.views(slow_); }
  std::vector<ElementState> elements(int64_t) override {
    return {{"momentum", std::vector<bool>(replica_.model.size(), true), parameters_.views(momentum_)}};
  }
  mesh::NamedTensors state() override { return {{"outer_step", step_}}; }

  void request_stop() override { stop_ = true; }  // later groups go on without this island
  bool should_stop() const override { return stop_ || trouble_.ended; }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  std::vector<int> partners(int64_t round) const {
    return group_of(messenger_.me(), messenger_.size(), static_cast<int>(options_.group), replica_.seed, round);
  }

  static std::vector<std::byte> encoded(const Compressor& compressor, const at::Tensor& values) {
    const at::Tensor host = values.cpu().contiguous();
    return compressor.encode({}, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
  }
  // Undefined: the bytes do not decode to the model.
  at::Tensor decoded(const Compressor& compressor, const std::vector<std::byte>& code) const {
    at::Tensor values = at::empty({parameters_.elements()}, at::kFloat);
    const std::span<float> into(values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()));
    return compressor.decode({}, code, into) ? values.to(slow_.device()) : at::Tensor();
  }

  void send(int64_t round, Kind kind, const std::vector<std::byte>& code, comm::Purpose purpose) {
    for (const int other : partners(round)) {
      if (other == messenger_.me()) continue;
      messenger_.send(other, {kind, round, 0}, code, purpose);
      bytes_ += static_cast<int64_t>(code.size());
    }
  }
  // Sends the slow weights to the group of this round, always in fp32: the pull is a difference of nearly equal numbers.
  void send_slow(int64_t round) {
    if (replica_.steps > 0 && round * options_.every > replica_.steps) return;  // the run ends before that round
    send(round, Kind::slow_weights, encoded(*exact_, slow_), comm::Purpose::parameter);
  }

  // What one island of the group sends.
  struct Member {
    at::Tensor progress, slow;
  };

  // The group's messages, this island's own among them. Nothing, unless all came in time and every member confirmed to have all of them.
  std::optional<std::vector<Member>> exchange(int64_t round, const std::vector<int>& group, const at::Tensor& progress) {
    const std::vector<std::byte> code = encoded(*compressor_, progress);
    send(round, Kind::progress, code, comm::Purpose::gradient);
    if (!options_.prefetch_slow) send_slow(round);
    const auto others = [&](const auto& holds) {
      for (const int other : group)
        if (other != messenger_.me() && !holds(other)) return false;
      return true;
    };
    bool gone = false;
    const auto came = [&](Kind kind) {
      return [&, kind](int other) {
        gone = gone || (messenger_.lost(other) && !messenger_.find(other, {kind, round, 0}));
        return messenger_.find(other, {kind, round, 0}) != nullptr;
      };
    };
    const std::chrono::nanoseconds until = messenger_.now() + timeout_;
    const bool here =
        quorum_.wait([&] { return (others(came(Kind::slow_weights)) && others(came(Kind::progress))) || gone; }, until) && !gone;
    if (!here) return std::nullopt;
    for (const int other : group)
      if (other != messenger_.me()) messenger_.send(other, {Kind::confirm, round, 0}, {}, comm::Purpose::control);
    if (!quorum_.wait([&] { return others(came(Kind::confirm)) || gone; }, until) || gone) return std::nullopt;
    std::vector<Member> members;
    for (const int island : group) {
      const bool me = island == messenger_.me();
      // This island's own progress after compression, as the others have it.
      Member one{decoded(*compressor_, me ? code : messenger_.take(island, {Kind::progress, round, 0})),
                 me ? slow_ : decoded(*exact_, messenger_.take(island, {Kind::slow_weights, round, 0}))};
      if (!one.progress.defined() || !one.slow.defined() || !std::isfinite(one.progress.norm().item<double>()) ||
          !std::isfinite(one.slow.norm().item<double>()))
        return std::nullopt;
      members.push_back(std::move(one));
    }
    return members;
  }

  void round(int64_t number) {
    const std::vector<int> group = partners(number);
    const at::Tensor progress = parameters_.flatten().sub_(slow_);
    const base::Clock& clock = replica_.replica_group.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    std::optional<std::vector<Member>> members;
    if (group.size() > 1) {
      std::optional<base::Trace::Span> traced;
      if (replica_.trace) traced.emplace(replica_.trace->span("wait for partner", "sync"));
      members = exchange(number, group, progress);
    }
    const double wait_s = base::seconds(clock.now() - begun);
    for (const Kind kind : {Kind::slow_weights, Kind::progress, Kind::confirm}) messenger_.forget(kind, number);
    at::Tensor mean_progress = progress, apart;
    double spread = 0;
    if (members) {
      at::Tensor mean_slow = members->front().slow.clone();
      mean_progress = members->front().progress.clone();
      for (size_t i = 1; i < members->size(); ++i) {
        mean_progress.add_((*members)[i].progress);
        mean_slow.add_((*members)[i].slow);
      }
      const double share = 1.0 / static_cast<double>(members->size());
      apart = slow_ - mean_slow.mul_(share);
      mean_progress.mul_(share);
      spread = relative_norm(apart, slow_);
    }
    momentum_.mul_(options_.outer_momentum).add_(mean_progress.mul(options_.outer_lr));
    if (apart.defined()) momentum_.sub_(apart.mul_(pull_));
    slow_.add_(momentum_);
    parameters_.assign(slow_);
    if (options_.prefetch_slow) send_slow(number + 1);
    int partner = -1;
    for (const int other : group)
      if (other != messenger_.me()) partner = other;
    metrics_ = {{"partner", members ? partner : -1},
                {"sync_bytes", static_cast<double>(bytes_)},
                {"stall_s", wait_s},
                {"outer_norm", mean_progress.norm().item<double>()},
                {"spread", spread}};
  }

  const NolocoOptions options_;
  const double pull_;
  const std::chrono::nanoseconds timeout_;
  Replica replica_;
  std::unique_ptr<const Compressor> compressor_, exact_;
  IslandMessenger messenger_;
  Quorum quorum_;
  RoundTrouble trouble_;
  FlatParameters parameters_;
  at::Tensor slow_, momentum_;
  at::Tensor step_;  // that this state belongs to
  bool stop_ = false;
  int64_t bytes_ = 0;
  StepMetrics metrics_;
};

}  // namespace

std::unique_ptr<Sync> make_noloco(const SyncOptions& options, Replica replica) { return std::make_unique<Noloco>(options, replica); }

RuleKeys noloco_keys() {
  using O = NolocoOptions;
  return keys_in(
      base::Schema<O>{
          "sync.island",
          "With kind = \"noloco\": in every round each island averages with one other, drawn anew; there is no all-reduce.",
          {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
           {"group", &O::group, "Islands of a group in a round.", base::at_least(2)},
           {"outer_lr", &O::outer_lr, "How much the progress of the group counts.", base::more_than(0)},
           {"outer_momentum", &O::outer_momentum, "Of the outer step.", base::between(0, 0.999)},
           {"pull", &O::pull, "How strongly an island is pulled towards the mean of its group. -1: as outer_lr."},
           {"prefetch_slow", &O::prefetch_slow, "Slow weights travel to the next partner during the steps before the round."},
           {"final", &O::final_model, "What the run ends with: the mean over all islands, or each island's own.", kNolocoFinalNames}}},
      &SyncOptions::noloco);
}

}  // namespace cairn::sync
