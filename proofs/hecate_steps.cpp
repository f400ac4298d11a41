// The time and the bytes of a step: the trainer's own steps on 8 ranks, 2 nodes of 4, over links of declared speed. Experts and the blocks
// between them take a declared time on the virtual clock. The router's biases are chosen so that 2 of 16 experts, which have one home, get
// 60 % of the tokens.
#include "proofs/hecate_steps.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/bincount.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/call.h"
#include "model/experts/balance.h"
#include "model/experts/exchange.h"
#include "model/experts/routing_observer.h"
#include "parallel/pass.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/state/surgery.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

constexpr int kStepRanks = 8, kNodeRanks = 4;
constexpr int64_t kStepExperts = 16, kExpertWidth = 32, kEmbed = 64, kStepLayers = 2;
constexpr double kRowSeconds = 10e-6, kDenseSeconds = 4e-3;  // forward; backward takes twice as long

std::chrono::nanoseconds lasting(double seconds) { return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)); }

// A route whose experts take time by the row.
class CostedRoute final : public model::ExpertRoute {
 public:
  CostedRoute(std::unique_ptr<model::ExpertRoute> inner, comm::World& world) : inner_(std::move(inner)), world_(world) {}
  const kernels::RowGroups& local_groups() override { return inner_->local_groups(); }
  model::ExpertRows dispatch(const at::Tensor& rows) override { return inner_->dispatch(rows); }
  model::ExpertRows combine(const at::Tensor& results) override {
    take(results.size(0), 1);
    return inner_->combine(results);
  }
  model::ExpertRows combine_backward(const at::Tensor& gradient) override { return inner_->combine_backward(gradient); }
  model::ExpertRows dispatch_backward(const at::Tensor& gradient) override {
    take(gradient.size(0), 2);
    return inner_->dispatch_backward(gradient);
  }
  void save(model::Saved& into) override { inner_->save(into); }

 private:
  void take(int64_t rows, double times) {
    world_.timer(world_.clock().now() + lasting(times * kRowSeconds * static_cast<double>(rows))).wait();
  }
  std::unique_ptr<model::ExpertRoute> inner_;
  comm::World& world_;
};

// The exchange of a run, with declared times: of the blocks before a layer, and of its experts. Counts the rows that this rank computes.
class CostedExchange final : public model::ExpertExchange {
 public:
  CostedExchange(std::unique_ptr<model::ExpertExchange> inner, comm::World& world) : inner_(std::move(inner)), world_(world) {}

  std::unique_ptr<model::ExpertRoute> begin(const model::ExpertRequest& request, const model::Call& call) const override {
    world_.timer(world_.clock().now() + lasting(kDenseSeconds)).wait();
    auto route = inner_->begin(request, call);
    rows_[std::string(request.block)] += route->local_groups().rows();
    return std::make_unique<CostedRoute>(std::move(route), world_);
  }
  std::unique_ptr<model::ExpertRoute> resume(const model::ExpertRequest& request, model::Saved& saved,
                                             const model::Call& call) const override {
    world_.timer(world_.clock().now() + lasting(2 * kDenseSeconds)).wait();
    return std::make_unique<CostedRoute>(inner_->resume(request, saved, call), world_);
  }
  // By layer, since the last call.
  std::vector<int64_t> take_rows() {
    std::vector<int64_t> all;
    for (const auto& [block, rows] : std::exchange(rows_, {})) all.push_back(rows);
    return all;
  }

 private:
  std::unique_ptr<model::ExpertExchange> inner_;
  comm::World& world_;
  mutable std::map<std::string, int64_t> rows_;
};

base::Recipe steps_recipe(const ProofOptions& options, const Assignments& sets) {
  return with(small_decoder(options, {"model.kind=mixtral", fmt::format("model.layers={}", kStepLayers),
                                      fmt::format("model.embed={}", kEmbed), "model.heads=4", "model.kv_heads=2",
                                      fmt::format("model.mlp={}", kExpertWidth), fmt::format("model.moe.experts={}", kStepExperts),
                                      "model.moe.balance=bias", "model.moe.bias_rate=0", "train.global_batch=128", "data.length=32",
                                      "train.steps=100", "optim.learning_rate=0.000001", "data.stories_bytes=200000"}),
              sets);
}

// 200 MB/s inside a node, 20 MB/s between nodes.
comm::LinkModel links_of_nodes() {
  comm::LinkModel link;
  link.jitter = 0;
  link.latency = std::chrono::microseconds(50);
  link.contention = comm::LinkModel::Contention::per_nic;
  for (int from = 0; from < kStepRanks; ++from) {
    auto& rates = link.bytes_per_s_matrix.emplace_back();
    for (int to = 0; to < kStepRanks; ++to) rates.push_back(from / kNodeRanks == to / kNodeRanks ? 200e6 : 20e6);
  }
  return link;
}

void on_links_of_nodes(int ranks, const std::function<void(comm::World&)>& body) {
  comm::LocalOptions options;
  if (ranks == kStepRanks) options.link = links_of_nodes();
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, options).run(body))
    if (error) std::rethrow_exception(error);
}

// The probabilities that a router gave, by block.
class Probabilities final : public model::RoutingObserver {
 public:
  void saw(std::string_view block, const at::Tensor&, const at::Tensor& scores, const at::Tensor&) override {
    scores_[std::string(block)] = scores.to(at::kDouble);
  }
  const at::Tensor& of(const std::string& block) const { return scores_.at(block); }

 private:
  std::map<std::string, at::Tensor> scores_;
};

// Biases under which each expert is chosen as often as `shares` say.
at::Tensor biases_for(const at::Tensor& probabilities, const at::Tensor& shares) {
  const at::Tensor biases = at::zeros({kStepExperts}, at::kDouble);
  double rate = 4 * probabilities.std().item<double>();
  for (int round = 0; round < 600; ++round, rate *= 0.985) {
    const at::Tensor ids = std::get<1>(at::topk(probabilities + biases, 2, 1)).reshape({-1});
    const at::Tensor found = at::bincount(ids, {}, kStepExperts).to(at::kDouble) / static_cast<double>(ids.numel());
    biases.add_(((shares - found) / shares).clamp(-1, 1), rate);
  }
  return biases.to(at::kFloat);
}

using Biases = std::map<std::string, at::Tensor>;  // by name of the parameter

// 60 % of the choices for experts `first` and `first` + 1, the others evenly.
at::Tensor shares_with(int64_t first) {
  const at::Tensor shares = at::full({kStepExperts}, 0.4 / static_cast<double>(kStepExperts - 2), at::kDouble);
  shares.narrow(0, first, 2).fill_(0.3);
  return shares;
}

void set_biases(train::Job& job, const Biases& biases) {
  optim::Surgery surgery;
  for (const auto& [name, values] : biases) surgery.emplace_back(optim::NewValues{name, values});
  train::operate(job, surgery);
}

// On one rank, layer by layer: a later layer sees what the earlier ones make.
Biases find_biases(const ProofOptions& options, int64_t first) {
  Biases found;
  on_links_of_nodes(1, [&](comm::World& world) {
    const std::unique_ptr<train::Job> job = train::build(world, steps_recipe(options, {"train.global_batch=256"}), {}, {});
    const mesh::Batch batch = job->ahead.loader->next();
    Probabilities seen;
    job->engine.options.routing = &seen;
    for (const model::ExpertBias& one : model::expert_biases(*job->engine.model)) {
      const std::string name = job->engine.model->parameters()[one.parameter].name;
      parallel::execute(train::pass_over(job->engine, batch));
      const std::string block = one.load.substr(0, one.load.rfind('.'));
      found[name] = biases_for(seen.of(block), shares_with(first));
      set_biases(*job, {{name, found[name]}});
    }
  });
  return found;
}

// What steps took, each.
struct StepBooks {
  double seconds = 0;
  double imbalance = 0;                                 // rows of the busiest rank over the mean, worst layer
  std::map<comm::Purpose, double> between_nodes, sent;  // bytes of all ranks, in a step
  double copies = 0;                                    // experts copied in a step
  double predicted_bytes = 0;                           // of copies: their number times the bytes of an expert
  int64_t peak_bytes = 0;                               // that layers with copies held at once, of any rank
};

std::map<comm::Purpose, double> bytes_between(comm::World& world, bool between_nodes) {
  std::map<comm::Purpose, double> all;
  for (const comm::Purpose purpose : {comm::Purpose::activation, comm::Purpose::parameter, comm::Purpose::gradient})
    for (int to = 0; to < world.size(); ++to)
      if (!between_nodes || to / kNodeRanks != world.rank() / kNodeRanks)
        all[purpose] += static_cast<double>(world.ledger().between(world.rank(), to, purpose).bytes);
  return all;
}

struct StepRun {
  Assignments sets = {};
  std::vector<Biases> biases = {};  // in turn, each for `steps`
  int steps = 4;
  int uncounted = 2;  // before the first
};

StepBooks measure_steps(const ProofOptions& options, const StepRun& run) {
  StepBooks books;
  std::mutex mutex;
  std::vector<std::vector<int64_t>> rows(kStepRanks);  // by rank and layer
  on_links_of_nodes(kStepRanks, [&](comm::World& world) {
    Assignments sets{fmt::format("mesh.ep={}", kStepRanks), fmt::format("expert.node_ranks={}", kNodeRanks), "expert.dispatch=flat"};
    sets.insert(sets.end(), run.sets.begin(), run.sets.end());
    const std::unique_ptr<train::Job> job = train::build(world, steps_recipe(options, sets), {}, {});
    auto costed = std::make_unique<CostedExchange>(std::move(job->engine.owned.experts), world);
    CostedExchange& exchange = *costed;
    job->engine.owned.experts = std::move(costed);
    job->engine.options.experts = job->engine.owned.experts.get();
    const auto take = [&](int steps) {
      double copies = 0;
      for (int i = 0; i < steps; ++i) {
        const train::TakenStep taken = train::take_step(*job);
        ++job->progress.steps_done;
        job->progress.tokens_done += taken.tokens;
        if (job->engine.owned.copies) copies += static_cast<double>(job->engine.owned.copies->copies());
      }
      return copies;
    };
    set_biases(*job, run.biases.front());
    take(run.uncounted);
    world.everyone().barrier("books").wait_host();
    exchange.take_rows();
    const auto between = bytes_between(world, true), all = bytes_between(world, false);
    const auto begun = world.clock().now();
    double copies = 0;
    for (size_t i = 0; i < run.biases.size(); ++i) {
      if (i > 0) set_biases(*job, run.biases[i]);
      copies += take(run.steps);
    }
    world.everyone().barrier("books").wait_host();
    const double seconds = base::seconds(world.clock().now() - begun), steps = run.steps * static_cast<double>(run.biases.size());
    const std::lock_guard lock(mutex);
    books.seconds = std::max(books.seconds, seconds / steps);
    for (const auto& [purpose, bytes] : bytes_between(world, true)) books.between_nodes[purpose] += (bytes - between.at(purpose)) / steps;
    for (const auto& [purpose, bytes] : bytes_between(world, false)) books.sent[purpose] += (bytes - all.at(purpose)) / steps;
    rows[static_cast<size_t>(world.rank())] = exchange.take_rows();
    books.copies = copies / steps;
    books.predicted_bytes = books.copies * 3 * kEmbed * kExpertWidth * 4;
    if (job->engine.owned.copies) books.peak_bytes = std::max(books.peak_bytes, job->engine.owned.copies->peak_bytes());
  });
  for (size_t layer = 0; layer < static_cast<size_t>(kStepLayers); ++layer) {
    double most = 0, sum = 0;
    for (const std::vector<int64_t>& of_rank : rows)
      most = std::max(most, static_cast<double>(of_rank[layer])), sum += static_cast<double>(of_rank[layer]);
    books.imbalance = std::max(books.imbalance, most * kStepRanks / sum);
  }
  return books;
}

double copies_between(const StepBooks& copied, const StepBooks& plain) {
  return copied.between_nodes.at(comm::Purpose::parameter) - plain.between_nodes.at(comm::Purpose::parameter) +
         copied.between_nodes.at(comm::Purpose::gradient) - plain.between_nodes.at(comm::Purpose::gradient);
}

}  // namespace

void hecate_steps(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("60 % of the tokens on 2 of 16 experts");
  const Biases hot = find_biases(options, 0);
  const Assignments copying{"expert.placement=fssdp", "expert.reshard_every=0"};
  const StepBooks plain = measure_steps(options, {.biases = {hot}}), copied = measure_steps(options, {.sets = copying, .biases = {hot}});
  findings.at_least("3. tokens of the busiest rank over the mean, plain ep (8 ranks as 2 nodes of 4)", 1, plain.imbalance, 2.4);
  findings.at_most("3. the same with copies", plain.imbalance, copied.imbalance, 1.3);
  findings.at_most("3. time of a step over plain ep (20 MB/s between nodes, 10 us a row, 4 ms before a layer)", 1,
                   copied.seconds / plain.seconds, 0.75);
  const double rows_plain = plain.between_nodes.at(comm::Purpose::activation), rows = copied.between_nodes.at(comm::Purpose::activation);
  findings.at_most("3. bytes of rows between nodes over plain ep", 1, rows / rows_plain, 0.6);
  findings.at_most("3. the same with the copies and their gradients", 1, (rows + copies_between(copied, plain)) / rows_plain, 0.6);
  findings.at_most("3. bytes of copies sent, less those of the plan", copied.predicted_bytes,
                   std::abs(copied.sent.at(comm::Purpose::parameter) - plain.sent.at(comm::Purpose::parameter) - copied.predicted_bytes),
                   0);

  log.info("copies that are sent again");
  Assignments again = copying;
  again.emplace_back("expert.rematerialize=true");
  const StepBooks twice = measure_steps(options, {.sets = again, .biases = {hot}});
  findings.at_most("3. memory of layers with copies that are sent again, over kept copies (2 layers)", 1,
                   static_cast<double>(twice.peak_bytes) / static_cast<double>(copied.peak_bytes), 0.5);
  findings.at_most("3. time of a step in which they are sent again, over plain ep", copied.seconds / plain.seconds,
                   twice.seconds / plain.seconds, 0.75);

  log.info("hot experts that change every 10 steps");
  std::vector<Biases> turns;
  for (const int64_t first : {0, 6, 12}) turns.push_back(find_biases(options, first));
  const StepBooks plain_turns = measure_steps(options, {.biases = turns, .steps = 10});
  for (const bool calibrates : {false, true}) {
    Assignments sets = copying;
    if (calibrates) sets.insert(sets.end(), {"expert.calibrate=true", "expert.memory_slots=4"});
    const StepBooks drift = measure_steps(options, {.sets = sets, .biases = turns, .steps = 10});
    findings.at_most(fmt::format("4. time of a step over plain ep where other experts become hot every 10 steps{}",
                                 calibrates ? ", with calibration" : ""),
                     1, drift.seconds / plain_turns.seconds, 1 / 1.2);
  }
}

}  // namespace cairn::study
