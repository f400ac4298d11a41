// OneFlow's placements: all pairs of forms on four meshes, inference of data and tensor parallelism, and the price of its choices. Values
// are compared with one process, bytes are read off the ledger.
#include "proofs/oneflow_placements.h"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "mesh/redistribute.h"
#include "mesh/redistribute_autograd.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/choices.h"
#include "planner/sbp/infer.h"
#include "proofs/graph_runs.h"
#include "proofs/oneflow_bytes.h"

namespace cairn::study {
namespace {

using namespace planner;

const std::vector<Sbp> kForms{split_of(0), split_of(1), kReplicate, kPartial};

std::vector<NdSbp> all_sbp(size_t axes) {
  std::vector<NdSbp> all{{}};
  for (size_t axis = 0; axis < axes; ++axis) {
    std::vector<NdSbp> longer;
    for (const NdSbp& so_far : all)
      for (const Sbp sbp : kForms) {
        longer.push_back(so_far);
        longer.back().push_back(sbp);
      }
    all = std::move(longer);
  }
  return all;
}

// What a rank holds of a value in these forms, where terms of a sum are unequal parts of it.
at::Tensor held_of(const at::Tensor& whole, const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh, int rank) {
  NdSbp values = nd_sbp;
  double share = 1;
  for (size_t axis = 0; axis < nd_sbp.size(); ++axis)
    if (nd_sbp[axis] == kPartial) {
      values[axis] = kReplicate;
      const int n = mesh.axes[axis].size, c = mesh.coordinate(rank, mesh.axes[axis].name);
      share *= 2.0 * (c + 1) / (n * (n + 1.0));
    }
  return local_part(whole, tensor, values, mesh, rank) * share;
}

bool has_terms(const NdSbp& nd_sbp) { return std::find(nd_sbp.begin(), nd_sbp.end(), kPartial) != nd_sbp.end(); }

// Bytes that the sheet's table gives for one axis of `ranks`.
double table_bytes(Sbp from, Sbp to, int ranks, double bytes) {
  if (from == to || to == kPartial || from == kReplicate) return 0;
  if (from == kPartial) return (to == kReplicate ? 2 : 1) * (ranks - 1) * bytes;
  return to == kReplicate ? (ranks - 1) * bytes : bytes * (ranks - 1) / ranks;
}

struct PairsFound {
  int pairs = 0, moved_wrong = 0;
  double sums_off = 0, gradients_off = 0;
  double bytes_off = 0;  // against the table
  double least_off = 0;  // against the sets of elements
};

void try_pairs(const std::string& text, const std::vector<int64_t>& shape, uint64_t seed, PairsFound& found) {
  const mesh::Mesh mesh = mesh::parse_mesh(text);
  const Boxing boxing(mesh, {});
  const GraphTensor tensor{.name = "t", .shape = shape, .item_bytes = 8};
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor x = at::arange(count, at::kDouble).add(static_cast<double>(seed)).mul(0.37).sin().view(shape);
  const at::Tensor w = at::arange(count, at::kDouble).add(static_cast<double>(seed)).mul(0.73).cos().view(shape);
  const NdSbp whole(mesh.axes.size());
  for (const NdSbp& from : all_sbp(mesh.axes.size()))
    for (const NdSbp& to : all_sbp(mesh.axes.size())) {
      std::mutex mutex;
      comm::LocalNetwork network(mesh.size(), {});
      const auto ended = network.run([&](comm::World& world) {
        const auto plan = std::make_shared<const mesh::RedistributePlan>(boxing.change(tensor, from, to));
        const at::Tensor before = held_of(x, tensor, from, mesh, world.rank()).requires_grad_();
        const at::Tensor after = mesh::redistribute_differentiably(world, before, plan, {comm::Purpose::activation, "t"});
        const at::Tensor back = mesh::redistribute(world, after.detach(), boxing.change(tensor, to, whole), {comm::Purpose::control, "t"});
        // A linear loss; of copies only the first counts.
        double share = 1;
        NdSbp values = to;
        for (size_t axis = 0; axis < to.size(); ++axis) {
          if (to[axis] == kReplicate && mesh.coordinate(world.rank(), mesh.axes[axis].name) > 0) share = 0;
          if (to[axis] == kPartial) values[axis] = kReplicate;
        }
        const at::Tensor weights = local_part(w, tensor, values, mesh, world.rank()) * share;
        const at::Tensor gradient = torch::autograd::grad({(after * weights).sum()}, {before})[0];
        const mesh::LayoutChange gather{mesh::dual({mesh, placement_of(tensor, from, mesh)}), {mesh, {}}, shape};
        const at::Tensor all = mesh::redistribute(world, gradient, gather, {comm::Purpose::control, "t"});
        const std::scoped_lock lock(mutex);
        const bool sums = has_terms(from) || has_terms(to);
        if (sums)
          found.sums_off = std::max(found.sums_off, (back - x).abs().max().item<double>());
        else
          found.moved_wrong += !at::equal(back, x);
        found.gradients_off = std::max(found.gradients_off, (all - w).abs().max().item<double>());
      });
      for (const std::exception_ptr& error : ended)
        if (error) std::rethrow_exception(error);
      ++found.pairs;
      const auto least = static_cast<double>(8 * least_elements(mesh, shape, from, to));
      const auto all_sent = static_cast<double>(network.ledger().total(comm::Purpose::activation).bytes);
      found.least_off = std::max(found.least_off, least == 0 ? all_sent : std::abs(all_sent - least) / least);
      // The table is for dims that every rank has an equal part of.
      if (mesh.axes.size() > 1 || shape[0] % mesh.size() != 0 || shape[1] % mesh.size() != 0) continue;
      const double expected = table_bytes(from[0], to[0], mesh.size(), static_cast<double>(count * 8));
      const auto sent = static_cast<double>(network.ledger().total(comm::Purpose::activation).bytes);
      const double off = expected == 0 ? sent : std::abs(sent - expected) / expected;
      found.bytes_off = std::max(found.bytes_off, off);
    }
}

int reductions(const PlacedGraph& placed, Move::When when) {
  int count = 0;
  for (const Move& move : placed.moves) {
    if (move.when != when || move.bytes == 0) continue;
    const NdSbp from = when == Move::When::backward ? dual(move.to) : when == Move::When::gradient ? dual(move.from) : move.from;
    const NdSbp to = when == Move::When::backward ? dual(move.from) : move.to;
    bool reduces = false;
    for (size_t i = 0; i < from.size(); ++i) reduces = reduces || (from[i] == kPartial && to[i] != kPartial);
    count += reduces;
  }
  return count;
}

struct Agreement {
  double apart = 0, bytes_off = 0;
};
void compare_with_one(const PlacedGraph& placed, uint64_t seed, Agreement& worst) {
  const LocalTensors whole = example_values(placed.graph, seed);
  const GraphResult one = run_graph_alone(placed.graph, whole), many = run_graph({.placed = placed, .whole = whole});
  worst.apart = std::max({worst.apart, std::abs(one.loss - many.loss), furthest(many.gradients, one.gradients)});
  worst.bytes_off = std::max(
      worst.bytes_off, std::abs(static_cast<double>(many.bytes - placed.bytes)) / std::max<double>(1, static_cast<double>(placed.bytes)));
}

PlacedGraph inferred(const OpGraph& graph, const std::string& mesh, std::map<std::string, NdSbp> fixed) {
  Boxing boxing(mesh::parse_mesh(mesh), {});
  return infer(graph, boxing, {.fixed = std::move(fixed)});
}

void prove_inference(uint64_t seed, Findings& findings) {
  Agreement worst;
  int odd_reductions = 0, others = 0;
  const NdSbp whole{kReplicate};
  for (const int ranks : {2, 3, 4}) {
    const PlacedGraph placed = inferred(mlp_graph(7 + static_cast<int64_t>(seed % 5), 6, 10, 5), fmt::format("dp={}", ranks),
                                        {{"w1", whole}, {"b1", whole}, {"w2", whole}, {"b2", whole}});
    odd_reductions += std::abs(reductions(placed, Move::When::gradient) - 4);
    others += std::abs(static_cast<int>(placed.moves.size()) - 4);
    compare_with_one(placed, seed, worst);
  }
  findings.at_most("2. weights on every rank, samples sharded: reductions beyond one for each parameter, and other messages", 0,
                   odd_reductions + others, 0);
  int tensor_reductions = 0, fewest = 9;
  for (const int ranks : {2, 3, 4}) {
    const PlacedGraph placed =
        inferred(mlp_graph(7, 6, 10, 5, false), fmt::format("tp={}", ranks), {{"w1", {split_of(0)}}, {"w2", {split_of(1)}}});
    tensor_reductions = std::max(tensor_reductions, reductions(placed, Move::When::forward));
    fewest = std::min(fewest, reductions(placed, Move::When::forward));
    compare_with_one(placed, seed, worst);
  }
  findings.at_most("2. first weight by out, second by in: reductions forward", 2, tensor_reductions, 1);
  findings.at_least("2. the same: reductions forward", 2, fewest, 1);
  const BlockShape shape{.batch = 2, .length = 4, .heads = 4, .keys = 4, .width = 16, .mlp = 160, .layers = 1, .vocab = 100};
  const auto megatron = [](const OpGraph& graph) {
    std::map<std::string, NdSbp> fixed;
    for (const GraphTensor& tensor : graph.tensors)
      if (tensor.kind == GraphTensor::Kind::parameter) {
        const std::string last = tensor.name.substr(tensor.name.find('.') + 1);
        const bool second = last == "wo" || last == "wd";
        fixed[tensor.name] = {tensor.shape.size() == 1 ? kReplicate : split_of(second ? 1 : 0)};
      }
    return fixed;
  };
  double forward = 0, backward = 0;
  for (const int ranks : {2, 4}) {
    BlockShape deeper = shape;
    deeper.layers = 3;
    const OpGraph short_one = decoder_graph(shape), long_one = decoder_graph(deeper);
    const PlacedGraph a = inferred(short_one, fmt::format("tp={}", ranks), megatron(short_one));
    const PlacedGraph b = inferred(long_one, fmt::format("tp={}", ranks), megatron(long_one));
    forward = std::max(forward, (reductions(b, Move::When::forward) - reductions(a, Move::When::forward)) / 2.0);
    backward = std::max(backward, (reductions(b, Move::When::backward) - reductions(a, Move::When::backward)) / 2.0);
    compare_with_one(a, seed, worst);
  }
  findings.at_most("2. a transformer block: reductions forward", 2, forward, 2);
  findings.at_most("2. a transformer block: reductions backward", 2, backward, 2);
  for (const std::string mesh : {"dp=2,tp=2", "dp=2,tp=3"}) {
    const OpGraph graph = decoder_graph({.batch = 5, .length = 7, .heads = 6, .keys = 3, .layers = 1});
    compare_with_one(inferred(graph, mesh, {}), seed, worst);
  }
  findings.at_most("2. losses and gradients of all of these against one process", 0, worst.apart, 1e-5);
  findings.at_most("2. bytes of all of these on the ledger against the plan's", 0, worst.bytes_off, 0.01);
}

void prove_choice(uint64_t seed, Findings& findings) {
  double worst = 0;
  for (const auto& [rows, width, first, second] : std::vector<std::tuple<int64_t, int64_t, Sbp, Sbp>>{{4, 32, split_of(0), split_of(0)},
                                                                                                      {4, 32, split_of(1), split_of(1)},
                                                                                                      {4, 32, split_of(0), split_of(1)},
                                                                                                      {256, 8, split_of(0), split_of(0)},
                                                                                                      {256, 8, split_of(1), split_of(0)}}) {
    const OpGraph graph = mlp_graph(rows, width, width, width, false);
    Boxing boxing(mesh::parse_mesh("dp=4"), {});
    const InferOptions options{.fixed = {{"w1", {first}}, {"w2", {second}}}};
    const PlacedGraph placed = infer(graph, boxing, options);
    const GraphResult ran = run_graph({.placed = placed, .whole = example_values(graph, seed)});
    const auto best = static_cast<double>(brute_force(make_problem(graph, boxing, options)).bytes);
    worst = std::max(worst, static_cast<double>(ran.bytes) / best);
  }
  findings.at_most(
      "3. two layers, activations 8 times lighter than weights and the other way: bytes on the ledger over the best of all combinations", 1,
      worst, 1.05);
}

}  // namespace

void prove_oneflow_placements(const ProofOptions& options, Findings& findings, base::Log& log) {
  PairsFound found;
  for (const std::string mesh : {"tp=4", "tp=6", "dp=2,tp=2", "dp=2,tp=3"}) {
    log.info("every change of placement on {}", mesh);
    const bool one = mesh.find(',') == std::string::npos;
    try_pairs(mesh, one ? std::vector<int64_t>{12, 24} : std::vector<int64_t>{7, 5}, options.seed, found);
    if (one) try_pairs(mesh, {7, 13}, options.seed, found);
  }
  findings.at_least("1. pairs of forms tried on 4, 6, 2x2 and 2x3 ranks", 576, found.pairs, 576);
  findings.at_most("1. moves that change a bit of the value", 0, found.moved_wrong, 0);
  findings.at_most("1. largest error of a sum", 0, found.sums_off, 1e-6);
  findings.at_most("1. gradients against one process", 0, found.gradients_off, 1e-6);
  findings.at_most("1. all pairs: bytes on the ledger against the fewest that the ranks' sets of elements allow, as a share", 0,
                   found.least_off, 0.01);
  findings.at_most("1. pairs with even parts along one axis: bytes on the ledger against the sheet's table, as a share", 0, found.bytes_off,
                   0.01);
  log.info("placements that are inferred");
  prove_inference(options.seed, findings);
  prove_choice(options.seed, findings);
}

}  // namespace cairn::study
