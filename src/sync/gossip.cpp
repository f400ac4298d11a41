// Gossip averaging, with one merge of all islands at the end ("single merging").
//
// Every H steps (`every`) island k replaces its model by an average with its neighbours N_k of this round, itself among them:
//
//   theta_k <- sum over j in N_k of W_kj theta_j,    W_kj = 1 / |N_k|
//
// W is row-stochastic. All topologies but `random` also keep the mean over islands (W is doubly stochastic). `random` draws few neighbours
// (0.2 on average, by default): local models stay poor, but they stay in one basin, so the single average over all islands at the end
// (`final` = merge) is a good model. `schedule` says how much islands communicate from round to round (gossip_schedule.h).
//
// The draw depends on seed, round and island alone, so each island knows whom to send its model to without being asked. A neighbour that is
// lost or late counts as being where this island is.
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
#include "sync/gossip_schedule.h"
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
        compressor_(make_compressor({wire_of(options)})),
        exact_(make_compressor({"fp32"})),
        rule_{options.exchange.merge, options.exchange.trim},
        timeout_(static_cast<int64_t>(options.exchange.timeout_s * 1e9)),
        messenger_({in_world_link(replica.replica_group), signature_of(options, replica), max_message_bytes(replica)}),
        quorum_(messenger_, quorum_options(options, replica)),
        parameters_(replica.parameters),
        step_(at::full({1}, -1, at::kLong)),
        plan_(options_, run_of_replica()) {
    if (options_.neighbours > messenger_.size() - 1)
      base::fail_input("sync.island.neighbours = {}: there are {} other islands", options_.neighbours, messenger_.size() - 1);
    if (options_.topology == Topology::random && options_.neighbours == 0 && options_.final_model == GossipFinal::merge)
      replica.replica_group.world().log().warn(
          "sync.island.neighbours = 0: the average of islands that never communicate is of no use. Try 0.2, or final = none");
  }

  int64_t begin(int64_t steps_done) override {
    step_.fill_(steps_done);
    return steps_done;
  }
  void gradient_ready(int64_t) override { messenger_.pump(); }

  comm::Work after_step(const StepFacts& facts) override {
    step_.fill_(facts.step);
    stop_decided_ = wants_to_stop_;
    if (facts.step % options_.every == 0) round(facts.step);
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // a round goes on without an island that is lost

  void finish() override {
    if (options_.final_model == GossipFinal::merge) average_all(step_.item<int64_t>() + 1, *exact_);
  }

  mesh::NamedTensors state() override { return {{"outer_step", step_}}; }
  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return stop_decided_ || trouble_.ended; }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // What this island sends, from the sizes of the whole model.
  GossipRun run_of_replica() const {
    int64_t elements = 0;
    for (const FullParameter& one : replica_.model) elements += one.elements;
    const int64_t islands = messenger_.size();
    const auto all = [&](const Compressor& compressor) {
      if (islands <= compressor.all_gather_limit()) return (islands - 1) * compressor.encoded_bytes(elements);
      return (islands - 1) * (compressor.encoded_bytes(elements) + compressor.result_compressor().encoded_bytes(elements)) / islands;
    };
    return {.islands = static_cast<int>(islands),
            .rounds = replica_.steps / options_.every,
            .seed = replica_.seed,
            .model_bytes = compressor_->encoded_bytes(elements),
            .all_bytes = all(*compressor_),
            .final_bytes = options_.final_model == GossipFinal::merge ? all(*exact_) : 0};
  }

  void round(int64_t step) {
    const base::Clock& clock = replica_.replica_group.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    std::optional<base::Trace::Span> traced;
    if (replica_.trace) traced.emplace(replica_.trace->span("wait for islands", "sync"));
    int with = messenger_.size();
    double apart = 0;
    const GossipIntensity now = plan_.at(step / options_.every);
    if (now.with_all) {
      apart = average_all(step, *compressor_);
    } else {
      const auto rows = mixing_rows(options_.topology, messenger_.size(), now.neighbours, replica_.seed, step / options_.every);
      std::tie(with, apart) = mix(step, rows);
    }
    traced.reset();
    metrics_ = {
        {"islands", with}, {"sync_bytes", static_cast<double>(bytes_)}, {"stall_s", base::seconds(clock.now() - begun)}, {"spread", apart}};
  }

  // Averages over all live islands, bitwise identical on all. Returns how far this island was from the mean.
  double average_all(int64_t step, const Compressor& compressor) {
    const at::Tensor own = parameters_.flatten();
    IslandMerge merge({.quorum = quorum_, .compressor = compressor, .rule = rule_, .step = step, .wants_to_stop = wants_to_stop_},
                      own.cpu());
    const at::Tensor mean = merge.wait();
    trouble_.note(merge.ending(), step, quorum_.waiting_for());
    bytes_ += merge.bytes_sent();
    quorum_.close(step);
    if (!mean.defined()) return 0;
    const at::Tensor there = mean.to(own.device());
    parameters_.assign(there);
    return relative_norm(own.sub(there), there);
  }

  // Averages with the islands of this one's row. Returns how many models were averaged, and how far this island was from the result.
  std::pair<int, double> mix(int64_t step, const std::vector<std::vector<int>>& rows) {
    const at::Tensor own = parameters_.flatten(), host = own.cpu();
    const auto me = static_cast<size_t>(messenger_.me());
    std::vector<std::byte> code;
    for (int other = 0; other < messenger_.size(); ++other) {
      const std::vector<int>& row = rows[static_cast<size_t>(other)];
      if (other == messenger_.me() || std::find(row.begin(), row.end(), messenger_.me()) == row.end()) continue;
      if (code.empty()) {
        code = compressor_->encode({}, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
      }
      messenger_.send(other, {Kind::model, step, 0}, code, comm::Purpose::parameter);
      bytes_ += static_cast<int64_t>(code.size());
    }
    const auto settled = [&](int other) {
      return other == messenger_.me() || messenger_.lost(other) || messenger_.find(other, {Kind::model, step, 0});
    };
    quorum_.wait([&] { return std::all_of(rows[me].begin(), rows[me].end(), settled); }, messenger_.now() + timeout_);
    at::Tensor sum;
    int with = 0;
    for (const int island : rows[me]) {
      at::Tensor values = own;
      if (island != messenger_.me() && messenger_.find(island, {Kind::model, step, 0})) {
        const std::vector<std::byte> theirs = messenger_.take(island, {Kind::model, step, 0});
        at::Tensor back = at::empty_like(host);
        if (compressor_->decode({}, theirs, {back.mutable_data_ptr<float>(), static_cast<size_t>(back.numel())})) {
          if (std::isfinite(back.norm().item<double>())) {
            values = back.to(own.device());
            ++with;
          }
        }
      }
      sum = sum.defined() ? sum.add_(values) : values.clone();
    }
    messenger_.forget(Kind::model, step);
    if (with == 0) return {1, 0};
    sum.mul_(1.0 / static_cast<double>(rows[me].size()));
    parameters_.assign(sum);
    return {with + 1, relative_norm(own.sub(sum), sum)};
  }

  const GossipOptions options_;
  Replica replica_;
  std::unique_ptr<const Compressor> compressor_, exact_;
  const MergeRule rule_;
  const std::chrono::nanoseconds timeout_;
  IslandMessenger messenger_;
  Quorum quorum_;
  FlatParameters parameters_;
  at::Tensor step_;
  const GossipPlan plan_;
  bool wants_to_stop_ = false, stop_decided_ = false;
  RoundTrouble trouble_;
  int64_t bytes_ = 0;
  StepMetrics metrics_;
};

}  // namespace

std::vector<std::vector<int>> mixing_rows(Topology topology, int islands, double neighbours, uint64_t seed, int64_t round) {
  std::vector<std::vector<int>> rows(static_cast<size_t>(islands));
  const std::vector<int> order = topology == Topology::pairwise ? shuffled(islands, seed, round) : std::vector<int>{};
  for (int k = 0; k < islands; ++k) {
    std::vector<int>& row = rows[static_cast<size_t>(k)];
    row.push_back(k);
    if (topology == Topology::complete) {
      row.resize(static_cast<size_t>(islands));
      std::iota(row.begin(), row.end(), 0);
    } else if (topology == Topology::ring) {
      row.insert(row.end(), {(k + 1) % islands, (k + islands - 1) % islands});
    } else if (topology == Topology::exponential) {
      for (int offset = 1; offset < islands; offset *= 2) row.push_back((k + offset) % islands);
    } else if (topology == Topology::pairwise) {
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

RuleKeys gossip_keys() {
  using O = GossipOptions;
  return keys_in(
      base::Schema<O>{
          "sync.island",
          "With kind = \"gossip\": islands average with a few others now and then, and with all of them once, at the end.",
          {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
           {"topology", &O::topology,
            "Whom an island averages with: random others that it asks (random), in pairs (pairwise), or fixed neighbours.", kTopologyNames},
           {"neighbours", &O::neighbours, "With topology = \"random\": how many others, on average.", base::at_least(0)},
           {"schedule", &O::schedule,
            "When islands communicate: fixed and final as topology says all along; window: with all from window_start on, for "
            "window_width; linear and cosine: ever more, up to neighbours_end; budget: with all in the last rounds that budget_mib "
            "allows.",
            kGossipScheduleNames},
           {"window_start", &O::window_start, "With schedule = \"window\", as a share of the run.", base::between(0, 1)},
           {"window_width", &O::window_width, "With schedule = \"window\", as a share of the run.", base::between(0, 1)},
           {"neighbours_end", &O::neighbours_end, "With schedule = \"linear\" or \"cosine\": how many others at the end; 0: all.",
            base::at_least(0)},
           {"budget_mib", &O::budget_mib, "With schedule = \"budget\": what each island may send in all, the final merge included.",
            base::more_than(0)},
           {"final", &O::final_model, "What the run ends with: the mean over all, or nothing.", kGossipFinalNames}}},
      &SyncOptions::gossip);
}

}  // namespace cairn::sync
