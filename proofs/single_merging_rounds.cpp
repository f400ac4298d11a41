#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/single_merging_parts.h"
#include "study/claims.h"
#include "sync/gossip.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::study {
namespace {

using sync::Topology;

// Rounds of the product's rule between nodes that learn nothing. `start` gives the vector of a node before a round, if it gets a new one.
struct VectorRounds {
  Topology topology = Topology::random;
  int nodes = 2;
  int64_t rounds = 20, elements = 1000;
  uint64_t seed = 1;
  double neighbours = 1.2;
  std::function<at::Tensor(int node, int64_t round)> start = {};
};

// By round and node: the vectors after it.
std::vector<std::vector<at::Tensor>> vectors_after(const VectorRounds& run) {
  std::vector<std::vector<at::Tensor>> after(static_cast<size_t>(run.rounds), std::vector<at::Tensor>(static_cast<size_t>(run.nodes)));
  sync::SyncOptions options{.kind = "gossip"};
  options.gossip = {.every = 1, .topology = run.topology, .neighbours = run.neighbours};
  options.gossip.final_model = sync::GossipFinal::none;
  const auto ended = comm::LocalNetwork(run.nodes, {.seed = run.seed}).run([&](comm::World& world) {
    const mesh::NamedTensors parameters{{"x", at::zeros({run.elements}, at::kFloat)}};
    const std::vector<sync::FullParameter> whole{{"x", run.elements}};
    const auto rule = sync::make_sync(options, {.replica_group = world.everyone(),
                                                .model_group = world.alone(),
                                                .parameters = parameters,
                                                .gradients = {},
                                                .model = whole,
                                                .steps = run.rounds,
                                                .seed = run.seed});
    rule->begin(0);
    for (int64_t round = 1; round <= run.rounds; ++round) {
      if (const at::Tensor values = run.start(world.rank(), round); values.defined()) parameters.front().tensor.copy_(values);
      rule->after_step({.step = round}).wait();
      after[static_cast<size_t>(round - 1)][static_cast<size_t>(world.rank())] = parameters.front().tensor.to(at::kDouble);
    }
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return after;
}

at::Tensor random_vector(uint64_t seed, int node, int64_t elements) {
  at::Tensor values = at::empty({elements}, at::kFloat);
  base::Random(seed)
      .for_purpose("vectors")
      .for_index(static_cast<uint64_t>(node))
      .fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(elements)});
  return values;
}

double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

// The mixing matrices that were applied, by round: node k starts each round with the unit vector e_k, and ends it with row k.
std::vector<at::Tensor> matrices_applied(Topology topology, int nodes, double neighbours, int64_t rounds, uint64_t seed) {
  VectorRounds run{.topology = topology, .nodes = nodes, .rounds = rounds, .elements = nodes, .seed = seed, .neighbours = neighbours};
  run.start = [&](int node, int64_t) {
    at::Tensor unit = at::zeros({nodes}, at::kFloat);
    unit[node] = 1;
    return unit;
  };
  std::vector<at::Tensor> matrices;
  for (const std::vector<at::Tensor>& rows : vectors_after(run)) matrices.push_back(at::stack(rows));
  return matrices;
}

// How far a round over random vectors is from the product with the matrix that everybody can draw, in double: the most of 20 rounds.
double off_the_product(Topology topology, int nodes, uint64_t seed) {
  VectorRounds run{.topology = topology, .nodes = nodes, .seed = seed};
  std::vector<at::Tensor> now;
  for (int k = 0; k < nodes; ++k) now.push_back(random_vector(seed, k, run.elements).to(at::kDouble));
  run.neighbours = std::min(1.2, nodes - 1.0);
  run.start = [&](int node, int64_t round) { return round == 1 ? random_vector(seed, node, run.elements) : at::Tensor(); };
  const auto found = vectors_after(run);
  double off = 0;
  for (int64_t round = 1; round <= run.rounds; ++round) {
    const auto rows = sync::mixing_rows(topology, nodes, run.neighbours, seed, round);
    for (size_t k = 0; k < rows.size(); ++k) {
      at::Tensor sum = at::zeros_like(now[k]);
      for (const int j : rows[k]) sum += now[static_cast<size_t>(j)];
      off = std::max(off, largest(found[static_cast<size_t>(round - 1)][k] - sum / static_cast<double>(rows[k].size())));
    }
    now = found[static_cast<size_t>(round - 1)];
  }
  return off;
}

}  // namespace

void prove_gossip_rounds(const ProofOptions& options, Findings& findings) {
  double rows = 0, columns = 0, complete = 0, product = 0, moved = 0;
  for (const int nodes : {2, 7, 16})
    for (const Topology topology : {Topology::random, Topology::pairwise, Topology::ring, Topology::exponential, Topology::complete}) {
      for (const at::Tensor& matrix : matrices_applied(topology, nodes, std::min(1.2, nodes - 1.0), 20, options.seed)) {
        rows = std::max(rows, largest(matrix.sum(1) - 1));
        if (topology != Topology::random) columns = std::max(columns, largest(matrix.sum(0) - 1));
        if (topology == Topology::complete) complete = std::max(complete, largest(matrix - 1.0 / nodes));
      }
      if (topology != Topology::complete) product = std::max(product, off_the_product(topology, nodes, options.seed));
    }
  for (const int nodes : {7, 16}) {
    VectorRounds run{.topology = Topology::pairwise, .nodes = nodes, .seed = options.seed};
    run.start = [&](int node, int64_t round) { return round == 1 ? random_vector(options.seed, node, run.elements) : at::Tensor(); };
    at::Tensor before = at::zeros({run.elements}, at::kDouble);
    for (int k = 0; k < nodes; ++k) before += random_vector(options.seed, k, run.elements).to(at::kDouble) / nodes;
    for (const std::vector<at::Tensor>& after : vectors_after(run)) moved = std::max(moved, largest(at::stack(after).mean(0) - before));
  }
  double drawn = 0;
  for (const at::Tensor& matrix : matrices_applied(Topology::random, 16, 0.2, 200, options.seed))
    drawn += (matrix.gt(0).sum().item<double>() - 16) / (16 * 200);
  findings.at_most("mixing weights as applied, 2, 7 and 16 nodes, 20 rounds: a row is off a sum of 1 by", 0, rows, 1e-6);
  findings.at_most("likewise without random neighbours: a column (the mean moves)", 0, columns, 1e-6);
  findings.at_most("complete graph: a round is off the mean of all by", 0, complete, 1e-6);
  findings.at_most("random vectors, 20 rounds between ranks: a round is off the product W x in double by", 0, product, 1e-6);
  findings.at_most("20 rounds in pairs: the mean over nodes moves by", 0, moved, 1e-6);
  findings.at_most("0.2 random neighbours, 3200 draws: the share of nodes that asked another is off 0.2 by", 0.2, std::abs(drawn - 0.2),
                   0.03);
}

}  // namespace cairn::study
