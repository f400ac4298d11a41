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
// goes on without a member that is late or lost: that round uses the island's own progress alone. A message can be lost with its link, so
// one member of a group may use a round that another one skips. Nothing depends on it: islands have no model in common.
//
// Remote islands. Who may be in a group is what the log says of that step (islands/peers.h); no round is decided together. A newcomer takes
// slow weights and momentum of one island; after a restart of all each goes on with its own.
#include <algorithm>
#include <array>
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
#include "mesh/write_barrier.h"
#include "sync/islands/compressor.h"
#include "sync/islands/flat_parameters.h"
#include "sync/islands/merge_rule.h"
#include "sync/islands/messenger.h"
#include "sync/islands/pairing.h"
#include "sync/islands/peers.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

using Kind = MessageTag::Kind;

class Noloco final : public Sync {
 public:
  Noloco(const SyncOptions& options, Replica replica)
      : options_(options.noloco),
        pull_(pull_of(options.noloco)),
        replica_(replica),
        compressor_(make_compressor({wire_of(options)})),
        exact_(make_compressor({"fp32"})),
        parameters_(replica.parameters, replica.barrier),
        slow_(parameters_.zeros()),
        momentum_(parameters_.zeros()),
        peers_(make_peers({options, replica, options.noloco.every, slow_, momentum_})),
        step_(at::full({1}, -1, at::kLong)) {
    if (Quorum* quorum = peers_->quorum()) {
      messenger_ = &quorum->messenger();
      rounds_.emplace(*peers_, std::chrono::nanoseconds(static_cast<int64_t>(options.exchange.timeout_s * 1e9)));
      const auto group = static_cast<int>(options_.group);
      if (group > messenger_->size() && messenger_->size() > 1)
        base::fail_input("sync.island.group = {}: there are {} islands", group, messenger_->size());
    }
    if (const double factor = contraction(options_.outer_momentum, pull_, static_cast<int>(options_.group)); factor >= 1)
      base::fail_input(
          "sync.island.pull = {} with outer_momentum = {}: the islands would drift apart ({:.3g} times the spread after every round): with "
          "this momentum the pull must lie between 0 and {:.3g}",
          pull_, options_.outer_momentum, factor, strongest_pull(options_.outer_momentum, static_cast<int>(options_.group)));
    if (replica.steps > 0 && replica.steps < options_.every)
      base::fail_input("sync.island.every = {}: the run has {} steps, so no round would take place: use less", options_.every,
                       replica.steps);
  }

  int64_t begin(int64_t steps_done) override {
    if (steps_done == 0 || step_.item<int64_t>() != steps_done) slow_.copy_(parameters_.flatten());
    if (replica_.steps > 0 && steps_done >= replica_.steps) return steps_done;  // the run has ended
    return take_up(peers_->begin(steps_done));
  }

  void gradient_ready(int64_t) override { peers_->poll(); }

  comm::Work after_step(const StepFacts& facts) override {
    step_.fill_(facts.step);
    peers_->poll();
    if (facts.step % options_.every == 0) round(facts.step / options_.every);
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // a round goes on without an island that is lost

  void finish() override {
    if (position_) return;
    mesh::before_write(replica_.barrier, slow_);
    slow_.copy_(parameters_.flatten());
    if (options_.final_model == NolocoFinal::one || (messenger_ && messenger_->size() == 1)) return;
    // The only exchange among all islands.
    const int64_t step = step_.item<int64_t>();
    const MeanOfAll all = mean_of_all(*peers_, *exact_, MergeRule{}, {.step = step + 1}, slow_);
    if (all.ending == RoundEnding::rejoin) return come_back(peers_->begin_again(step));
    trouble_.note(all.ending, step, all.waiting_for);
    if (!all.mean.defined()) return;
    slow_.copy_(all.mean);
    parameters_.assign(slow_);
  }
  void leave() override { peers_->leave(step_.item<int64_t>()); }

  std::vector<at::Tensor> global_parameters() override { return parameters_.views(slow_); }
  std::vector<ElementState> elements(int64_t) override {
    return {{"momentum", std::vector<bool>(replica_.model.size(), true), parameters_.views(momentum_)}};
  }
  mesh::NamedTensors state() override { return {{"outer_step", step_}}; }

  void request_stop() override { stop_ = true; }  // later groups go on without this island
  bool should_stop() const override { return stop_ || trouble_.ended; }
  std::optional<int64_t> take_new_position() override { return std::exchange(position_, std::nullopt); }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  int64_t take_up(const IslandPeers::StartPoint& start_point) {
    if (start_point.state_replaced) parameters_.assign(slow_);
    step_.fill_(start_point.step);
    prefetched_.clear();
    keep_full_slow();
    if (options_.prefetch_slow) send_slow(start_point.step / options_.every + 1);
    return start_point.step;
  }
  // The others went on without this island, which has the state of one of them now.
  void come_back(const IslandPeers::StartPoint& start_point) {
    if (start_point.ending == RoundEnding::decided)
      position_ = take_up(start_point);
    else
      trouble_.note(start_point.ending, start_point.step, "the other islands");
  }

  // The group of this island in a round, by number; alone if it takes no part yet.
  std::vector<int> partners(int64_t round) const {
    const Incarnations members = peers_->members(round * options_.every);
    std::vector<int> there;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i] != 0) there.push_back(static_cast<int>(i));
    const auto me = std::find(there.begin(), there.end(), messenger_->me());
    if (me == there.end()) return {messenger_->me()};
    std::vector<int> group = group_of(static_cast<int>(me - there.begin()), static_cast<int>(there.size()),
                                      static_cast<int>(options_.group), replica_.seed, round);
    for (int& one : group) one = there[static_cast<size_t>(one)];
    return group;
  }

  static std::vector<std::byte> encoded(const Compressor& compressor, const at::Tensor& host) {
    return compressor.encode({}, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
  }
  // Undefined: the bytes do not decode to the model.
  at::Tensor decoded(const Compressor& compressor, const std::vector<std::byte>& code) const {
    at::Tensor values = at::empty_like(full_slow_);
    const std::span<float> into(values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()));
    return compressor.decode({}, code, into) && std::isfinite(values.norm().item<double>()) ? values : at::Tensor();
  }

  void send(int64_t round, int to, Kind kind, const std::vector<std::byte>& code, comm::Purpose purpose) {
    messenger_->send(to, {kind, round, 0}, code, purpose);
    bytes_ += static_cast<int64_t>(code.size());
  }
  void keep_full_slow() { full_slow_ = peers_->gather(slow_); }
  // Sends the slow weights to the members of the round's group that have not got them, always in fp32: the pull is a difference of nearly
  // equal numbers.
  void send_slow(int64_t round) {
    if (!messenger_ || (replica_.steps > 0 && round * options_.every > replica_.steps)) return;  // the run ends before that round
    std::vector<std::byte> code;
    for (const int other : partners(round)) {
      if (other == messenger_->me() || std::find(prefetched_.begin(), prefetched_.end(), other) != prefetched_.end()) continue;
      if (code.empty()) code = encoded(*exact_, full_slow_);
      send(round, other, Kind::slow_weights, code, comm::Purpose::parameter);
      prefetched_.push_back(other);
    }
  }

  // The means of a group, as a rank that exchanges has them.
  struct GroupMeans {
    at::Tensor progress = {}, slow = {};
  };

  // Undefined unless all messages came in time and every member confirmed to have all of them.
  GroupMeans exchange(int64_t round, const std::vector<int>& group, const at::Tensor& progress) {
    const std::vector<std::byte> code = encoded(*compressor_, progress);
    for (const int other : group)
      if (other != messenger_->me()) send(round, other, Kind::progress, code, comm::Purpose::gradient);
    send_slow(round);
    bool gone = false;
    const auto came = [&](Kind kind) {
      bool all = true;
      for (const int other : group) {
        if (other == messenger_->me() || messenger_->find(other, {kind, round, 0})) continue;
        all = false;
        gone = gone || rounds_->is_gone(other);
      }
      return all;
    };
    const bool here = rounds_->wait([&] { return (came(Kind::slow_weights) && came(Kind::progress)) || gone; }) && !gone;
    if (!here) return {};
    for (const int other : group)
      if (other != messenger_->me()) messenger_->send(other, {Kind::confirm, round, 0}, {}, comm::Purpose::control);
    if (!rounds_->wait([&] { return came(Kind::confirm) || gone; }) || gone) return {};
    GroupMeans means;
    for (const int island : group) {
      const bool me = island == messenger_->me();
      // This island's own progress after compression, as the others have it.
      const at::Tensor moved = decoded(*compressor_, me ? code : messenger_->take(island, {Kind::progress, round, 0})),
                       slow = me ? full_slow_ : decoded(*exact_, messenger_->take(island, {Kind::slow_weights, round, 0}));
      if (!moved.defined() || !slow.defined()) return {};
      means.progress = means.progress.defined() ? means.progress.add_(moved) : moved.clone();
      means.slow = means.slow.defined() ? means.slow.add_(slow) : slow.clone();
    }
    means.progress.mul_(1.0 / static_cast<double>(group.size()));
    means.slow.mul_(1.0 / static_cast<double>(group.size()));
    return means;
  }

  // On a rank that exchanges. `partner`: the last one of the group; -1: the round was skipped, or there is none.
  GroupMeans exchange_with_group(int64_t number, const at::Tensor& progress, double& partner) {
    const std::vector<int> group = partners(number);
    GroupMeans means;
    rounds_->begin(number, peers_->members(number * options_.every), group);
    if (group.size() > 1) {
      std::optional<base::Trace::Span> traced;
      if (replica_.trace) traced.emplace(replica_.trace->span("wait for partner", "sync"));
      means = exchange(number, group, progress);
    }
    rounds_->end(means.slow.defined() ? group : std::vector<int>{});
    for (const Kind kind : {Kind::slow_weights, Kind::progress, Kind::confirm}) messenger_->forget(kind, number);
    for (const int other : group)
      if (other != messenger_->me() && means.slow.defined()) partner = other;
    return means;
  }

  void round(int64_t number) {
    const at::Tensor progress = parameters_.flatten().sub_(slow_), full = peers_->gather(progress);
    const base::Clock& clock = replica_.replica_group.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    std::array<double, 3> result{0, -1, 0};  // whether there are means, the partner, bytes sent so far
    GroupMeans means;
    if (messenger_) {
      means = exchange_with_group(number, full, result[1]);
      result[0] = means.slow.defined() ? 1 : 0;
      result[2] = static_cast<double>(bytes_);
    }
    peers_->share(result);
    const double wait_s = base::seconds(clock.now() - begun);
    at::Tensor mean_progress = progress, apart;
    double spread = 0;
    if (result[0] != 0) {
      mean_progress = peers_->scatter(means.progress);
      apart = slow_ - peers_->scatter(means.slow);
      spread = relative_norm(apart, slow_);
    }
    for (const at::Tensor& written : {momentum_, slow_}) mesh::before_write(replica_.barrier, written);
    momentum_.mul_(options_.outer_momentum).add_(mean_progress.mul(options_.outer_lr));
    if (apart.defined()) momentum_.sub_(apart.mul_(pull_));
    slow_.add_(momentum_);
    parameters_.assign(slow_);
    metrics_ = {{"partner", result[1]},
                {"sync_bytes", result[2]},
                {"stall_s", wait_s},
                {"outer_norm", mean_progress.norm().item<double>()},
                {"spread", spread}};
    prefetched_.clear();
    if (const auto start_point = peers_->end_round(number * options_.every)) return come_back(*start_point);
    keep_full_slow();
    if (options_.prefetch_slow) send_slow(number + 1);
  }

  const NolocoOptions options_;
  const double pull_;
  Replica replica_;
  std::unique_ptr<const Compressor> compressor_, exact_;
  FlatParameters parameters_;
  at::Tensor slow_, momentum_;
  std::unique_ptr<IslandPeers> peers_;
  IslandMessenger* messenger_ = nullptr;  // null: the island's first rank exchanges for this one
  std::optional<PartnerRounds> rounds_;   // where there is a messenger
  at::Tensor full_slow_;                  // what is exchanged of slow_, there
  std::vector<int> prefetched_;           // members of the next group that have this island's slow weights
  RoundTrouble trouble_;
  at::Tensor step_;  // that this state belongs to
  std::optional<int64_t> position_;
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
