// Redco's two rules: against Megatron's placements by hand, with scrambled names, in the trainer, in memory and in time.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "planner/graph/described_models.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/infer.h"
#include "planner/tensor_parallel/auto_tp.h"
#include "proofs/graph_runs.h"
#include "proofs/hand_plans.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "train/planned.h"

namespace cairn::study {
namespace {

using namespace planner;

struct RuledFamily {
  std::string name;
  Description (*make)(int64_t layers);
  int reductions = 2;  // forward, for each layer
  bool fan_in_fan_out = false;
};

Description ruled_decoder(const std::string& family, int64_t layers, int64_t keys) {
  model::DecoderShape shape{.vocab = 512,
                            .embed = 128,
                            .layers = layers,
                            .heads = 8,
                            .kv_heads = keys,
                            .head_dim = 16,
                            .mlp = 344,
                            .length = 16,
                            .tied = family == "gpt2",
                            .family = family};
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = family == "gpt2";
  return describe(*model::make_decoder(shape));
}

std::vector<RuledFamily> ruled_families() {
  return {
      {"gpt2", [](int64_t layers) { return ruled_decoder("gpt2", layers, 8); }, 2, true},
      {"llama", [](int64_t layers) { return ruled_decoder("llama", layers, 4); }},
      {"t5", [](int64_t layers) { return t5({.vocab = 512, .embed = 128, .layers = layers, .heads = 8, .head_dim = 16, .mlp = 256}); }, 5},
      {"opt", [](int64_t layers) { return opt({.vocab = 512, .embed = 128, .layers = layers, .heads = 8, .mlp = 512}); }},
      {"vit", [](int64_t layers) { return vit({.patches = 8, .embed = 128, .layers = layers, .heads = 8, .mlp = 512}); }},
      {"unet", [](int64_t) { return unet_block({.channels = 128, .time = 256, .heads = 8, .text = 96}); }, 0}};
}

constexpr PassShape kTokens{.batch = 8, .length = 64};
constexpr PassShape kFewTokens{.batch = 1, .length = 8};  // weights are heavier than activations: nobody would gather them

// The dim that is split; -1: none.
int64_t dim_of(const mesh::Placement::How& how) {
  if (const auto* split = std::get_if<mesh::Split>(&how)) return split->dim;
  if (const auto* ragged = std::get_if<mesh::Ragged>(&how)) return ragged->dim;
  return -1;
}

int64_t dim_by_hand(const GraphTensor& parameter, bool fan_in_fan_out) {
  const bool matrix = parameter.shape.size() == 2;
  switch (by_name(parameter.name)) {
    case ByName::out:
      return matrix && fan_in_fan_out ? 1 : 0;
    case ByName::in:
      return matrix ? (fan_in_fan_out ? 0 : 1) : -1;
    case ByName::rows:
      return 0;
    case ByName::columns:
      return 1;
    case ByName::whole:
      break;
  }
  return -1;
}

int forward_reductions(const PlacedGraph& placed) {
  int count = 0;
  for (const Move& move : placed.moves)
    count += move.when == Move::When::forward && move.bytes > 0 && move.from.back() == kPartial && move.to.back() != kPartial;
  return count;
}

void prove_rules(uint64_t seed, Findings& findings) {
  int parameters = 0, otherwise = 0, scrambled_otherwise = 0, odd_reductions = 0;
  for (const RuledFamily& family : ruled_families()) {
    const Description described = family.make(2);
    const OpGraph graph = graph_of(described, kTokens);
    for (const int ranks : {2, 4, 8}) {
      const std::vector<RuledPlacement> rules = auto_tp(graph, ranks, {}, OddHeads::replicate);
      for (const RuledPlacement& one : rules) {
        ++parameters;
        otherwise += dim_of(one.how) != dim_by_hand(graph.tensors[static_cast<size_t>(graph.find(one.parameter))], family.fan_in_fan_out);
      }
      for (uint64_t i = 0; i < 5; ++i) {
        const std::vector<RuledPlacement> again =
            auto_tp(graph_of(scrambled(described, seed * 100 + i), kTokens), ranks, {}, OddHeads::replicate);
        for (size_t p = 0; p < rules.size(); ++p) scrambled_otherwise += again.size() != rules.size() || again[p].how != rules[p].how;
      }
    }
    if (family.reductions == 0) continue;
    const auto reductions = [&](int64_t layers) {
      const OpGraph deep = graph_of(family.make(layers), kFewTokens);
      Boxing boxing(mesh::parse_mesh("tp=2"), {});
      return forward_reductions(infer(deep, boxing, {.fixed = sbp_by_rules(deep, boxing.mesh())}));
    };
    odd_reductions += std::abs(reductions(4) - reductions(2) - 2 * family.reductions);
  }
  findings.at_most(fmt::format("1. gpt2, llama, t5, opt, vit, unet on 2, 4 and 8 ranks: placements other than by hand, of {}", parameters),
                   0, otherwise, 0);
  findings.at_most("1. reductions forward beyond one for each attention and each MLP", 0, odd_reductions, 0);
  findings.at_most("2. the same with every name scrambled, 5 seeds: placements that change", 0, scrambled_otherwise, 0);
}

void prove_exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Assignments shape{"model.layers=2", "model.embed=64", "model.heads=8",        "model.kv_heads=4",
                          "model.mlp=176",  "train.steps=10", "train.global_batch=8", "snapshot.every=10"};
  const base::Recipe recipe = small_decoder(options, shape);
  const Trained one = train_layout({.recipe = recipe, .ranks = 1, .out = std::filesystem::path(options.scratch) / "one"});
  double losses = 0, apart = 0;
  int otherwise = 0;
  for (const auto& [name, ranks, sets] :
       std::vector<std::tuple<std::string, int, Assignments>>{{"tp2", 2, {"mesh.tp=2"}},
                                                              {"tp4", 4, {"mesh.tp=4"}},
                                                              {"dp2tp2", 4, {"mesh.tp=2", "mesh.dp=2"}},
                                                              {"dp2tp4", 8, {"mesh.tp=4", "mesh.dp=2"}}}) {
    log.info("10 steps on {}", name);
    const train::Planned planned = train::planned(with(recipe, sets), ranks, nullptr);
    const mesh::Mesh& mesh = planned.plan.mesh;
    for (const RuledPlacement& ruled : auto_tp(graph_of(describe(*planned.task.model), kTokens), mesh.extent("tp"))) {
      const auto parameter = std::find_if(planned.task.model->parameters().begin(), planned.task.model->parameters().end(),
                                          [&](const model::Parameter& p) { return p.name == ruled.parameter; });
      mesh::Placement wanted;
      if (ruled.how != mesh::Placement::How(mesh::Replicate{})) wanted.axes.push_back({"tp", ruled.how});
      const mesh::Placement used = parallel::placement_of(planned.plan, ruled.parameter);
      for (const int rank : mesh.members())
        otherwise += mesh::boxes(wanted, mesh, rank, parameter->shape) != mesh::boxes(used, mesh, rank, parameter->shape);
    }
    const Trained many = train_layout({.recipe = with(recipe, sets), .ranks = ranks, .out = std::filesystem::path(options.scratch) / name});
    losses = std::max({losses, largest_relative_difference(one.losses, many.losses), largest_relative_difference(one.norms, many.norms)});
    apart = std::max(apart, largest_difference(one.parameters, many.parameters));
  }
  findings.at_most("2. parts of parameters that the trainer places otherwise than the rules", 0, otherwise, 0);
  findings.at_most("2. the trainer, 10 steps, n = 2 and 4, dp 1 and 2: losses and gradient norms against n = 1", 0, losses, 1e-5);
  findings.at_most("2. the same: parameters", 0, apart, 1e-5);
}

void prove_memory(const ProofOptions& options, Findings& findings) {
  const Assignments shape{"model.layers=2",   "model.embed=128", "model.heads=8",
                          "model.kv_heads=4", "model.mlp=352",   "train.global_batch=2"};
  const base::Recipe recipe = small_decoder(options, shape);
  const RunStats alone = collect_stats({.recipe = recipe, .ranks = 1, .steps = 1});
  const double whole = static_cast<double>(alone.ranks[0].parameters + alone.ranks[0].optimizer);
  for (const int ranks : {2, 4}) {
    const RunStats shared = collect_stats({.recipe = with(recipe, {fmt::format("mesh.tp={}", ranks)}), .ranks = ranks, .steps = 1});
    double most = 0;
    for (const RankStats& rank : shared.ranks) most = std::max(most, static_cast<double>(rank.parameters + rank.optimizer));
    findings.at_most(fmt::format("3. parameters and optimizer state of a rank, n = {}, as a share of all / n", ranks), ranks,
                     most * ranks / whole, 1.1);
  }
}

// Seconds of a step on links of 50 MB/s, with what ranks compute counted at 10 GFLOP/s.
double step_seconds(const PlacedGraph& placed, const LocalTensors& whole) {
  const comm::LinkModel link{.latency = std::chrono::microseconds(50), .bytes_per_s = 50e6, .jitter = 0};
  return run_graph({.placed = placed, .whole = whole, .link = link, .flops_per_s = 10e9}).seconds;
}

void prove_cost(uint64_t seed, Findings& findings, base::Log& log) {
  const OpGraph graph =
      decoder_graph({.batch = 1, .length = 16, .heads = 8, .keys = 8, .width = 16, .mlp = 352, .layers = 6, .vocab = 256});
  const LocalTensors whole = example_values(graph, seed);
  const mesh::Mesh mesh = mesh::parse_mesh("tp=4");
  Boxing boxing(mesh, {});
  const auto seconds = [&](std::map<std::string, NdSbp> fixed) {
    return step_seconds(infer(graph, boxing, {.fixed = std::move(fixed)}), whole);
  };
  const double rules = seconds(sbp_by_rules(graph, mesh));
  std::map<std::string, NdSbp> by_out, gathered;
  for (const GraphTensor& tensor : graph.tensors) {
    const bool parameter = tensor.kind == GraphTensor::Kind::parameter;
    if (parameter) by_out[tensor.name] = {tensor.shape.size() == 2 ? split_of(0) : kReplicate};
    if (parameter) gathered[tensor.name] = {split_of(0)};
    if (tensor.kind == GraphTensor::Kind::value) gathered[tensor.name] = {kReplicate};
  }
  // Left to inference, what follows such a product need not be gathered at once. The plain way gathers every result.
  const double helped = seconds(by_out), gather_each = seconds(gathered);
  for (const GraphOp& op : graph.ops)
    by_out[graph.tensors[static_cast<size_t>(op.output)].name] = {op.kind == GraphOp::Kind::product ? split_of(2) : kReplicate};
  const double all_by_out = seconds(by_out);
  double best = 1e9;
  const base::Random random(seed);
  uint64_t draws = 0;
  for (int trial = 0; trial < 20; ++trial) {
    std::map<std::string, NdSbp> fixed;
    for (const GraphTensor& tensor : graph.tensors) {
      if (tensor.kind != GraphTensor::Kind::parameter) continue;
      const uint64_t pick = random.below(draws++, tensor.shape.size() + 1);
      const NdSbp nd_sbp{pick == tensor.shape.size() ? kReplicate : split_of(static_cast<int>(pick))};
      fixed[tensor.name] = fits(tensor, nd_sbp, mesh) ? nd_sbp : NdSbp{kReplicate};
    }
    best = std::min(best, seconds(fixed));
  }
  log.info(
      "a step on links of 50 MB/s: by the rules {:.1f} ms, best of 20 at random {:.1f}, all by outputs {:.1f} (inferred around them "
      "{:.1f}), each parameter gathered {:.1f}",
      rules * 1e3, best * 1e3, all_by_out * 1e3, helped * 1e3, gather_each * 1e3);
  findings.at_most("4. 6 layers, batch 1, links of 50 MB/s: step by the rules / best of 20 random placements", 1, rules / best, 1.1);
  findings.at_least("4. all weights by outputs, every result gathered / by the rules", 1, all_by_out / rules, 1.3);
  findings.at_least("4. every parameter gathered when it is used / by the rules", 1, gather_each / rules, 1.3);
}

}  // namespace

void prove_redco_rules(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_rules(options.seed, findings);
  prove_exactness(options, findings, log);
  prove_memory(options, findings);
  prove_cost(options.seed, findings, log);
}

}  // namespace cairn::study
