#include "sync/gossip.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/council.h"
#include "sync/flat_parameters.h"
#include "sync/island_merge.h"
#include "sync/island_post.h"
#include "sync/options.h"
#include "sync/pairing.h"
#include "sync/replica_signature.h"
#include "sync/wire.h"

namespace cairn::sync {
namespace {

using Kind = Subject::Kind;

// `count` of the islands other than `me`, drawn without repetition.
std::vector<int> some_others(int me, int islands, int64_t count, const base::Random& random) {
  std::vector<int> others;
  for (int i = 0; i < islands; ++i)
    if (i != me) others.push_back(i);
  for (int64_t i = 0; i < count; ++i)
    std::swap(others[static_cast<size_t>(i)],
              others[static_cast<size_t>(i) + random.below(static_cast<uint64_t>(i) + 1, others.size() - static_cast<uint64_t>(i))]);
  others.resize(static_cast<size_t>(count));
  return others;
}

class Gossip final : public Sync {
 public:
  Gossip(const SyncOptions& options, Replica replica)
      : options_(options.gossip),
        replica_(replica),
        wire_(make_wire({wire_of(options)})),
        exact_(make_wire({"fp32"})),
        rule_{options.talk.merge, options.talk.trim},
        timeout_(static_cast<int64_t>(options.talk.timeout_s * 1e9)),
        post_({link_in_world(replica.peers), signature_of(options, replica), message_bytes_most(replica)}),
        council_(post_, timeout_),
        parameters_(replica.parameters),
        step_(at::full({1}, -1, at::kLong)) {
    if (options_.neighbours > post_.size() - 1)
      base::fail_input("sync.island.neighbours = {}: there are {} other islands", options_.neighbours, post_.size() - 1);
    if (options_.topology == "random" && options_.neighbours == 0 && options_.final_model == "merge")
      replica.peers.world().log().warn(
          "sync.island.neighbours = 0: islands that never talk cannot be merged in the end: their average is of no use; try 0.2");
  }

  int64_t begin(int64_t steps_done) override {
    step_.fill_(steps_done);
    return steps_done;
  }
  void gradient_ready(int64_t) override { post_.pump(); }

  comm::Work after_step(const StepFacts& facts) override {
    step_.fill_(facts.step);
    stop_agreed_ = wants_to_stop_;
    if (facts.step % options_.every == 0) round(facts.step);
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // whoever is lost is done without

  void finish() override {
    if (options_.final_model == "merge") average_all(step_.item<int64_t>() + 1, *exact_);
  }

  mesh::NamedTensors state() override { return {{"outer_step", step_}}; }
  void ask_to_stop() override { wants_to_stop_ = true; }
  bool stop_agreed() const override { return stop_agreed_; }
  Notes notes() override { return std::exchange(notes_, {}); }

 private:
  bool in_window(int64_t step) const {
    if (options_.schedule != "window" || replica_.steps == 0) return false;
    const double progress = static_cast<double>(step - options_.every) / static_cast<double>(replica_.steps);
    return progress >= options_.window_start && progress < options_.window_start + options_.window_width;
  }

  void round(int64_t step) {
    const base::Clock& clock = replica_.peers.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    std::optional<base::Trace::Span> traced;
    if (replica_.trace) traced.emplace(replica_.trace->span("wait for islands", "sync"));
    int with = post_.size();
    double apart = 0;
    if (options_.topology == "complete" || in_window(step)) {
      apart = average_all(step, *wire_);
    } else {
      const auto rows = mixing_rows(options_.topology, post_.size(), options_.neighbours, replica_.seed, step / options_.every);
      std::tie(with, apart) = mix(step, rows);
    }
    traced.reset();
    notes_ = {
        {"islands", with}, {"sync_bytes", static_cast<double>(bytes_)}, {"stall_s", base::seconds(clock.now() - begun)}, {"spread", apart}};
  }

  // A mean over all that live; everybody gets the same bits. How far this island was from it.
  double average_all(int64_t step, const Wire& wire) {
    const at::Tensor own = parameters_.live();
    IslandMerge merge({.council = council_, .wire = wire, .rule = rule_, .step = step, .wants_to_stop = wants_to_stop_}, own.cpu());
    const at::Tensor mean = merge.wait();
    bytes_ += merge.bytes_sent();
    council_.close(step);
    if (!mean.defined()) return 0;
    const at::Tensor there = mean.to(own.device());
    parameters_.put(there);
    return relative_norm(own.sub(there), there);
  }

  // Averages with the islands of this one's row, all as they were before the round.
  std::pair<int, double> mix(int64_t step, const std::vector<std::vector<int>>& rows) {
    const at::Tensor own = parameters_.live(), host = own.cpu();
    const auto me = static_cast<size_t>(post_.me());
    std::vector<std::byte> code;
    for (int other = 0; other < post_.size(); ++other) {
      const std::vector<int>& row = rows[static_cast<size_t>(other)];
      if (other == post_.me() || std::find(row.begin(), row.end(), post_.me()) == row.end()) continue;
      if (code.empty()) {
        code = wire_->encode({}, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
      }
      post_.send(other, {Kind::pull, step, 0}, code, comm::Purpose::parameter);
      bytes_ += static_cast<int64_t>(code.size());
    }
    const auto settled = [&](int other) { return other == post_.me() || post_.lost(other) || post_.find(other, {Kind::pull, step, 0}); };
    post_.wait([&] { return std::all_of(rows[me].begin(), rows[me].end(), settled); }, post_.now() + timeout_);
    at::Tensor sum;
    int with = 0;
    for (const int island : rows[me]) {
      at::Tensor values = own;
      // Whoever is not there counts as being where this island is.
      if (island != post_.me() && post_.find(island, {Kind::pull, step, 0})) {
        const std::vector<std::byte> theirs = post_.take(island, {Kind::pull, step, 0});
        at::Tensor back = at::empty_like(host);
        if (wire_->decode({}, theirs, {back.mutable_data_ptr<float>(), static_cast<size_t>(back.numel())})) {
          if (std::isfinite(back.norm().item<double>())) {
            values = back.to(own.device());
            ++with;
          }
        }
      }
      sum = sum.defined() ? sum.add_(values) : values.clone();
    }
    post_.forget(Kind::pull, step);
    if (with == 0) return {1, 0};
    sum.mul_(1.0 / static_cast<double>(rows[me].size()));
    parameters_.put(sum);
    return {with + 1, relative_norm(own.sub(sum), sum)};
  }

  const GossipOptions options_;
  Replica replica_;
  std::unique_ptr<const Wire> wire_, exact_;
  const MergeRule rule_;
  const std::chrono::nanoseconds timeout_;
  IslandPost post_;
  Council council_;
  FlatParameters parameters_;
  at::Tensor step_;
  bool wants_to_stop_ = false, stop_agreed_ = false;
  int64_t bytes_ = 0;
  Notes notes_;
};

}  // namespace

std::vector<std::vector<int>> mixing_rows(const std::string& topology, int islands, double neighbours, uint64_t seed, int64_t round) {
  std::vector<std::vector<int>> rows(static_cast<size_t>(islands));
  const std::vector<int> order = topology == "pairwise" ? shuffled(islands, seed, round) : std::vector<int>{};
  for (int k = 0; k < islands; ++k) {
    std::vector<int>& row = rows[static_cast<size_t>(k)];
    row.push_back(k);
    if (topology == "complete") {
      row.resize(static_cast<size_t>(islands));
      std::iota(row.begin(), row.end(), 0);
    } else if (topology == "ring") {
      row.insert(row.end(), {(k + 1) % islands, (k + islands - 1) % islands});
    } else if (topology == "exponential") {
      for (int offset = 1; offset < islands; offset *= 2) row.push_back((k + offset) % islands);
    } else if (topology == "pairwise") {
      const auto place = static_cast<size_t>(std::find(order.begin(), order.end(), k) - order.begin());
      if ((place ^ 1) < order.size()) row.push_back(order[place ^ 1]);
    } else {
      const base::Random random =
          base::Random(seed).for_purpose("gossip").for_index(static_cast<uint64_t>(round)).for_index(static_cast<uint64_t>(k));
      const double whole = std::floor(neighbours);
      const int64_t count = static_cast<int64_t>(whole) + (random.uniform(0) < neighbours - whole ? 1 : 0);
      for (const int other : some_others(k, islands, std::min<int64_t>(count, islands - 1), random.for_purpose("others")))
        row.push_back(other);
    }
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
  }
  return rows;
}

std::unique_ptr<Sync> make_gossip(const SyncOptions& options, Replica replica) { return std::make_unique<Gossip>(options, replica); }

}  // namespace cairn::sync
