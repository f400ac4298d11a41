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
// The draw depends on seed, round and members alone, so each island knows whom to send its model to without being asked. A neighbour that
// is lost or late counts as being where this island is.
//
// Mergeability (`track_merge_every`). Every so many rounds, and before the final merge, the mean of all islands is formed, evaluated and
// thrown away. The islands are mergeable if its loss is at most the mean of theirs:
//
//   thetabar = 1/m sum over k of theta_k,    gap = 1/m sum over k of L(theta_k) - L(thetabar),    Xi^2 = 1/m sum over k of
//   |theta_k - thetabar|^2
//
// Remote islands. Who takes part in a round is what the log says of that step (islands/peers.h). Only averages over all islands are decided
// together. A newcomer takes the model of one island; after a restart of all each goes on with its own.
#include "sync/gossip.h"

#include <algorithm>
#include <array>
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
#include "sync/islands/merge_rule.h"
#include "sync/islands/messenger.h"
#include "sync/islands/pairing.h"
#include "sync/islands/peers.h"
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
        islands_(replica.remote_islands ? replica.remote_islands->count : replica.replica_group.size()),
        compressor_(make_compressor({wire_of(options)})),
        exact_(make_compressor({"fp32"})),
        rule_{options.exchange.merge, options.exchange.trim},
        parameters_(replica.parameters, replica.barrier),
        passed_on_(replica.remote_islands ? parameters_.zeros() : parameters_.zeros().narrow(0, 0, 0)),
        peers_(make_peers({options, replica, options.gossip.every, passed_on_, {}})),
        step_(at::full({1}, -1, at::kLong)),
        plan_(options_, run_of_replica()) {
    if (Quorum* quorum = peers_->quorum()) {
      messenger_ = &quorum->messenger();
      rounds_.emplace(*peers_, std::chrono::nanoseconds(static_cast<int64_t>(options.exchange.timeout_s * 1e9)));
    }
    if (options_.neighbours > islands_ - 1)
      base::fail_input("sync.island.neighbours = {}: there are {} other islands", options_.neighbours, islands_ - 1);
    if (options_.topology == Topology::random && options_.neighbours == 0 && options_.final_model == GossipFinal::merge)
      replica.replica_group.world().log().warn(
          "sync.island.neighbours = 0: the average of islands that never communicate is of no use. Try 0.2, or final = none");
  }

  int64_t begin(int64_t steps_done) override {
    keep_to_pass_on();
    if (replica_.steps > 0 && steps_done >= replica_.steps) return steps_done;  // the run has ended
    return take_up(peers_->begin(steps_done));
  }
  void gradient_ready(int64_t) override { peers_->poll(); }

  comm::Work after_step(const StepFacts& facts) override {
    step_.fill_(facts.step);
    stop_decided_ = wants_to_stop_;
    peers_->poll();
    if (facts.step % options_.every == 0) round(facts.step);
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // a round goes on without an island that is lost

  void finish() override {
    if (position_ || options_.final_model != GossipFinal::merge) return;
    average_all(step_.item<int64_t>() + 1, *exact_);
  }
  bool tracks_merge(int64_t step) const override {
    if (options_.track_merge_every == 0 || position_ || trouble_.ended) return false;
    return step == replica_.steps || step % (options_.every * options_.track_merge_every) == 0;
  }
  StepMetrics track_merge(int64_t step, const LossOf& loss_of) override;
  void leave() override {
    keep_to_pass_on();
    peers_->leave(step_.item<int64_t>());
  }

  mesh::NamedTensors state() override { return {{"outer_step", step_}}; }
  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return stop_decided_ || trouble_.ended; }
  std::optional<int64_t> take_new_position() override { return std::exchange(position_, std::nullopt); }
  std::string interruption() const override { return trouble_.interruption; }
  std::string apart() const override { return trouble_.apart(); }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // What this island sends, from the sizes of the whole model.
  GossipRun run_of_replica() const {
    int64_t elements = 0;
    for (const FullParameter& one : replica_.model) elements += one.elements;
    const int64_t islands = islands_;
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

  void keep_to_pass_on() {
    if (replica_.remote_islands) passed_on_.copy_(parameters_.flatten());
  }
  int64_t take_up(const IslandPeers::StartPoint& start_point) {
    if (start_point.state_replaced) parameters_.assign(passed_on_);
    step_.fill_(start_point.step);
    return start_point.step;
  }
  // The others went on without this island, which has the model of one of them now.
  void come_back(const IslandPeers::StartPoint& start_point) {
    if (start_point.ending == RoundEnding::decided)
      position_ = take_up(start_point);
    else
      trouble_.note(start_point.ending, start_point.step, "the other islands");
  }

  void round(int64_t step) {
    const base::Clock& clock = replica_.replica_group.world().clock();
    const std::chrono::nanoseconds begun = clock.now();
    std::optional<base::Trace::Span> traced;
    if (replica_.trace) traced.emplace(replica_.trace->span("wait for islands", "sync"));
    int with = islands_;
    double apart = 0;
    const GossipIntensity now = plan_.at(step / options_.every);
    if (now.with_all)
      std::tie(with, apart) = average_all(step, *compressor_);
    else
      std::tie(with, apart) = mix(step, now.neighbours);
    traced.reset();
    metrics_ = {
        {"islands", with}, {"sync_bytes", static_cast<double>(bytes_)}, {"stall_s", base::seconds(clock.now() - begun)}, {"spread", apart}};
    if (position_) return;
    keep_to_pass_on();
    if (const auto start_point = peers_->end_round(step)) come_back(*start_point);
  }

  // Averages over all live islands, bitwise identical on all. Returns how many these are, and how far this island was from the mean.
  std::pair<int, double> average_all(int64_t step, const Compressor& compressor) {
    const at::Tensor own = parameters_.flatten();
    const MeanOfAll all =
        mean_of_all(*peers_, compressor, rule_, {.step = step, .wants_to_stop = wants_to_stop_, .more_follow = tracks_merge(step)}, own);
    bytes_ += all.bytes_sent;
    if (all.ending == RoundEnding::rejoin) {
      come_back(peers_->begin_again(step));
      return {1, 0};
    }
    trouble_.note(all.ending, step, all.waiting_for);
    if (!all.mean.defined()) return {1, 0};
    parameters_.assign(all.mean);
    return {replica_.remote_islands ? all.included : islands_, relative_norm(own.sub(all.mean), all.mean)};
  }

  // The rows of this round by island, with the islands' numbers. Empty: that island takes no part.
  std::vector<std::vector<int>> rows_of(const Incarnations& members, double neighbours, int64_t round) const {
    std::vector<int> there;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i] != 0) there.push_back(static_cast<int>(i));
    std::vector<std::vector<int>> rows(members.size());
    const auto drawn = mixing_rows(options_.topology, static_cast<int>(there.size()), neighbours, replica_.seed, round);
    for (size_t k = 0; k < there.size(); ++k)
      for (const int other : drawn[k]) rows[static_cast<size_t>(there[k])].push_back(there[static_cast<size_t>(other)]);
    return rows;
  }

  // Averages with the islands of this one's row. Returns how many models were averaged, and how far this island was from the result.
  std::pair<int, double> mix(int64_t step, double neighbours) {
    const at::Tensor own = parameters_.flatten(), host = peers_->gather(own);
    std::array<double, 2> result{1, static_cast<double>(bytes_)};  // models averaged, bytes sent so far
    at::Tensor mean;
    if (messenger_) {
      const Incarnations members = peers_->members(step);
      mean = exchange_models(step, members, rows_of(members, neighbours, step / options_.every), host, result[0]);
      result[1] = static_cast<double>(bytes_);
    }
    peers_->share(result);
    bytes_ = static_cast<int64_t>(result[1]);
    if (result[0] < 2) return {1, 0};
    const at::Tensor there = peers_->scatter(mean);
    parameters_.assign(there);
    return {static_cast<int>(result[0]), relative_norm(own.sub(there), there)};
  }

  // On a rank that exchanges: sends the model to those that count on it, and returns the mean of this island's row.
  at::Tensor exchange_models(int64_t step, const Incarnations& members, const std::vector<std::vector<int>>& rows, const at::Tensor& host,
                             double& averaged) {
    const int me = messenger_->me();
    const std::vector<int>& row = rows[static_cast<size_t>(me)];
    std::vector<int> readers;
    for (int other = 0; other < messenger_->size(); ++other)
      if (other != me && std::ranges::count(rows[static_cast<size_t>(other)], me) > 0) readers.push_back(other);
    std::vector<int> partners = row;
    partners.insert(partners.end(), readers.begin(), readers.end());
    rounds_->begin(step, members, partners);
    std::vector<std::byte> code;
    if (!readers.empty()) code = compressor_->encode({}, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
    for (const int other : readers) {
      messenger_->send(other, {Kind::model, step, 0}, code, comm::Purpose::parameter);
      bytes_ += static_cast<int64_t>(code.size());
    }
    const auto settled = [&](int other) {
      return other == me || messenger_->find(other, {Kind::model, step, 0}) || rounds_->is_gone(other);
    };
    rounds_->wait([&] { return std::all_of(row.begin(), row.end(), settled); });
    rounds_->end(readers);
    at::Tensor sum;
    for (const int island : row) {
      at::Tensor values = host;
      if (island != me && messenger_->find(island, {Kind::model, step, 0})) {
        const std::vector<std::byte> theirs = messenger_->take(island, {Kind::model, step, 0});
        at::Tensor back = at::empty_like(host);
        if (compressor_->decode({}, theirs, {back.mutable_data_ptr<float>(), static_cast<size_t>(back.numel())}) &&
            std::isfinite(back.norm().item<double>())) {
          values = back;
          ++averaged;
        }
      }
      sum = sum.defined() ? sum.add_(values) : values.clone();
    }
    messenger_->forget(Kind::model, step);
    return sum.defined() ? sum.mul_(1.0 / static_cast<double>(row.size())) : sum;
  }

  const GossipOptions options_;
  Replica replica_;
  const int islands_;  // that there may be
  std::unique_ptr<const Compressor> compressor_, exact_;
  const MergeRule rule_;
  FlatParameters parameters_;
  at::Tensor passed_on_;  // between remote islands: a copy of the model, for those that join
  std::unique_ptr<IslandPeers> peers_;
  IslandMessenger* messenger_ = nullptr;  // null: the island's first rank exchanges for this one
  std::optional<PartnerRounds> rounds_;   // where there is a messenger
  at::Tensor step_;
  const GossipPlan plan_;
  bool wants_to_stop_ = false, stop_decided_ = false;
  std::optional<int64_t> position_;
  RoundTrouble trouble_;
  int64_t bytes_ = 0, tracking_bytes_ = 0;
  StepMetrics metrics_;
};

// No result, for whatever reason, ends nothing: training needs none.
StepMetrics Gossip::track_merge(int64_t step, const LossOf& loss_of) {
  constexpr int32_t kModels = 1, kNumbers = 2;  // part 0 is a round that averages with all
  const at::Tensor own = parameters_.flatten();
  const MeanOfAll all = mean_of_all(*peers_, *exact_, MergeRule{}, {.step = step, .part = kModels, .more_follow = true}, own);
  tracking_bytes_ += all.bytes_sent;
  if (all.ending == RoundEnding::rejoin) {
    come_back(peers_->begin_again(step));
    return {};
  }
  if (all.ending != RoundEnding::decided || !all.mean.defined()) return {};
  const double local_loss = loss_of({}), merged_loss = loss_of(parameters_.views(all.mean));
  // Ranks may hold copies of the same elements: the sum over the island counts as many elements as the model has.
  std::array<double, 2> squares{own.sub(all.mean).square().sum(at::kDouble).item<double>(), static_cast<double>(parameters_.elements())};
  if (replica_.model_group.size() > 1)
    replica_.model_group.all_reduce({squares.data(), 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "distance"})
        .wait_host();
  double elements = 0;
  for (const FullParameter& one : replica_.model) elements += static_cast<double>(one.elements);
  const std::vector<double> mean =
      mean_of_numbers(*peers_, {.step = step, .part = kNumbers},
                      {squares[0] * elements / squares[1], std::isfinite(local_loss) ? local_loss : 0}, tracking_bytes_);
  if (mean.empty()) return {};
  StepMetrics found{{"merge_distance", mean[0]}, {"merge_bytes", static_cast<double>(tracking_bytes_)}};
  if (std::isfinite(local_loss) && std::isfinite(merged_loss)) {
    found.emplace_back("merge_local_loss", mean[1]);
    found.emplace_back("merge_loss", merged_loss);
    found.emplace_back("merge_gap", mean[1] - merged_loss);
  }
  return found;
}

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
           {"final", &O::final_model, "What the run ends with: the mean over all, or nothing.", kGossipFinalNames},
           {"track_merge_every", &O::track_merge_every,
            "Every so many rounds, and before the final merge: metrics say what the mean of all islands is worth (merge_gap). Costs an "
            "exchange with all and two evaluations; 0: never.",
            base::at_least(0)}}},
      &SyncOptions::gossip);
}

}  // namespace cairn::sync
