// ExFlow: experts that follow each other on one rank, and tokens that stay where their expert is. The baselines are one rank, the flow ep
// (results come back to the token's rank), the contiguous placement and random ones. Times of decoding are virtual: exact, and independent
// of the machine.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/stories/stories.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "parallel/generate/sharded_generator.h"
#include "planner/experts/place_experts.h"
#include "planner/experts/record_routing.h"
#include "proofs/layout_run.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

using planner::Affinity;
using planner::ExpertPlacement;

// Tokens that stay in their hidden group of experts in nine of ten layers.
struct PlantedGroups {
  ExpertPlacement optimum;
  planner::RoutingTrace trace;
};

PlantedGroups planted_groups(int layers, int experts, int groups, int64_t tokens, uint64_t seed) {
  PlantedGroups made{planner::random_placement(layers, experts, groups, seed), {layers, {}}};
  const base::Random random = base::Random(seed).for_purpose("planted groups");
  for (uint64_t token = 0; token < static_cast<uint64_t>(tokens); ++token) {
    const base::Random of_token = random.for_index(token);
    auto group = static_cast<int>(of_token.below(0, static_cast<uint64_t>(groups)));
    for (int layer = 0; layer < layers; ++layer) {
      const base::Random here = of_token.for_index(static_cast<uint64_t>(layer));
      if (here.uniform(0) >= 0.9) group = static_cast<int>(here.for_name("group").below(0, static_cast<uint64_t>(groups)));
      uint64_t which = here.for_name("expert").below(0, static_cast<uint64_t>(experts / groups));
      const std::vector<int>& of_layer = made.optimum.rank[static_cast<size_t>(layer)];
      int expert = 0;
      while (of_layer[static_cast<size_t>(expert)] != group || which-- > 0) ++expert;
      made.trace.experts.push_back(static_cast<int16_t>(expert));
    }
  }
  return made;
}

double kept_fraction(const ExpertPlacement& placement, const Affinity& affinity) {
  return planner::count_hops(placement, affinity, 0).kept_fraction();
}

void planted(const ProofOptions& options, Findings& findings, base::Log& log) {
  const base::RealClock clock;
  double worst = 1, slowest = 0, contiguous = 1;
  for (const int experts : {8, 16, 64}) {
    for (const int ranks : {2, 4, 8}) {
      log.info("planted groups: {} experts on {} ranks", experts, ranks);
      const PlantedGroups made = planted_groups(12, experts, ranks, 5000, options.seed);
      const Affinity affinity = planner::count_affinity(made.trace, experts);
      const double begun = base::seconds(clock.now());
      const ExpertPlacement found = planner::place_experts(affinity, {.ranks = ranks, .seed = options.seed});
      slowest = std::max(slowest, base::seconds(clock.now()) - begun);
      const double optimum = kept_fraction(made.optimum, affinity);
      worst = std::min(worst, kept_fraction(found, affinity) / optimum);
      contiguous = std::min(contiguous, kept_fraction(planner::contiguous_placement(12, experts, ranks), affinity) / optimum);
    }
  }
  findings.at_least("1. kept transitions of the planted optimum, the worst of 8, 16, 64 experts on 2, 4, 8 ranks", contiguous, worst, 0.98);
  findings.at_most("1. seconds of the slowest of these", 2, slowest, 2);
}

void uniform(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("transitions without structure");
  double most = 0;
  const base::Random random = base::Random(options.seed).for_purpose("uniform transitions");
  for (const int ranks : {2, 4, 8}) {
    planner::RoutingTrace trace{8, {}};
    for (uint64_t i = 0; i < 8 * 50000; ++i) trace.experts.push_back(static_cast<int16_t>(random.below(i, 16)));
    const double kept =
        kept_fraction(planner::place_experts(planner::count_affinity(trace, 16), {.ranks = ranks}), planner::count_affinity(trace, 16));
    most = std::max(most, kept - 1.0 / ranks);
  }
  findings.at_most("2. kept transitions above 1/P where transitions are uniform (16 experts on 2, 4, 8 ranks)", 0, most, 0.05);
}

void held_out(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("a placement from one half of the tokens, judged by the other");
  const PlantedGroups made = planted_groups(12, 16, 4, 8000, options.seed + 1);
  const auto half = static_cast<std::ptrdiff_t>(made.trace.experts.size() / 2);
  const std::vector<int16_t>& all = made.trace.experts;
  const Affinity first = planner::count_affinity({12, {all.begin(), all.begin() + half}}, 16);
  const Affinity second = planner::count_affinity({12, {all.begin() + half, all.end()}}, 16);
  const ExpertPlacement found = planner::place_experts(first, {.ranks = 4, .seed = options.seed});
  const auto leaving = [&](const ExpertPlacement& placement) { return 1 - kept_fraction(placement, second); };
  double random = 0;
  for (uint64_t i = 0; i < 20; ++i) random += leaving(planner::random_placement(12, 16, 4, options.seed + i)) / 20;
  const double contiguous = leaving(planner::contiguous_placement(12, 16, 4));
  findings.at_most("3. transitions that leave their rank, over contiguous (planted groups, other tokens)", 1, leaving(found) / contiguous,
                   0.8);
  findings.at_most("3. the same over the mean of 20 random placements", 1, leaving(found) / random, 0.75);
}

void nodes(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("nodes first, then ranks");
  const PlantedGroups made = planted_groups(8, 16, 2, 6000, options.seed + 2);
  const Affinity affinity = planner::count_affinity(made.trace, 16);
  const auto between = [&](const ExpertPlacement& placement) {
    return static_cast<double>(planner::count_hops(placement, affinity, 2).between) / static_cast<double>(affinity.transitions());
  };
  const double before = between(planner::contiguous_placement(8, 16, 4));
  const double after = between(planner::place_experts(affinity, {.ranks = 4, .node_ranks = 2, .seed = options.seed}));
  findings.at_most("4. transitions between nodes, where groups fit a node and no rank (2 nodes of 2)", before, after, 0.15);
}

constexpr int64_t kTextVocab = 257;

model::DecoderShape decoding_shape(int64_t layers, int64_t top_k) {
  model::DecoderShape shape{
      .vocab = kTextVocab, .embed = 128, .layers = layers, .heads = 4, .kv_heads = 2, .head_dim = 32, .mlp = 128, .length = 256};
  shape.family = "mixtral", shape.tied = false;
  shape.experts = {.count = 8, .top_k = top_k, .width = 128};
  return shape;
}

at::Tensor random_weights(const model::Model& model, uint64_t seed) {
  const at::Tensor flat = at::empty({model.elements()});
  model::initialize_parameters(model, flat, base::Random(seed).for_purpose("exflow weights"));
  for (const mesh::NamedTensor& one : model.layout().views(flat))  // so that routers and tokens choose clearly
    if (one.tensor.dim() > 1) one.tensor.mul_(3);
  return flat;
}

// Prompts of 4 to 19 bytes.
std::vector<model::GenerateRequest> prompts_from(const std::string& text, int64_t count, uint64_t seed) {
  std::vector<model::GenerateRequest> requests;
  const base::Random random = base::Random(seed).for_purpose("exflow prompts");
  for (int64_t i = 0; i < count; ++i) {
    const base::Random of = random.for_index(static_cast<uint64_t>(i));
    const uint64_t length = 4 + of.below(0, 16), begin = of.below(1, text.size() - length);
    std::vector<int32_t> ids;
    for (uint64_t at = begin; at < begin + length; ++at) ids.push_back(static_cast<unsigned char>(text[at]));
    requests.push_back({std::move(ids), of});
  }
  return requests;
}

std::string text_to_decode(const ProofOptions& options, int64_t first_story, int64_t stories) {
  if (options.data.empty()) return data::stories(options.seed, first_story, stories);
  const std::string all = base::read_file(options.data, int64_t{64} << 20);
  const size_t half = all.size() / 2;
  return first_story == 0 ? all.substr(0, half) : all.substr(half);
}

// A model on ranks along ep, and what it is asked.
struct DecodeCase {
  model::DecoderShape shape;
  at::Tensor weights;
  int ranks = 1;
  parallel::ExpertFlow flow = parallel::ExpertFlow::ep;
  parallel::ExpertTables tables = {};
  comm::LinkModel link = {};
};

struct ExpertDecoding {
  std::vector<model::GeneratedText> texts;
  double step_s = 0;  // of a decode step in which all texts take part
  parallel::ExpertTraffic traffic;
};

ExpertDecoding decode_along_ep(const DecodeCase& one, const std::vector<model::GenerateRequest>& requests, int64_t tokens) {
  const model::GenerateOptions options{.tokens = tokens, .length_max = one.shape.length, .sampling = {.temperature = 0}};
  ExpertDecoding result;
  if (one.ranks == 1) {
    const auto model = model::make_decoder(one.shape);
    const model::FlatWeights weights(model->layout(), one.weights);
    model::Buffers buffers = model->make_buffers(at::kFloat);
    const int threads = at::get_num_threads();  // too few operations to share them out
    at::set_num_threads(1);
    result.texts = model::generate(*model, weights, buffers, requests, options);
    at::set_num_threads(threads);
    return result;
  }
  std::mutex mutex;
  comm::LocalOptions network;
  network.link = one.link;
  const auto body = [&](comm::World& world) {
    const auto model = model::make_decoder(one.shape);
    const parallel::Plan plan = parallel::generation_plan({.axes = {{"ep", one.ranks}}, .ranks = {}, .parts = {}}, *model, one.tables);
    const parallel::ModelShard shard = parallel::model_shard(*model, plan, world.rank());
    const auto weights = parallel::allocate_shards(*model, plan, shard, at::TensorOptions().dtype(at::kFloat));
    const mesh::NamedTensors local = weights->layout().views(weights->flat()), whole = model->layout().views(one.weights);
    for (size_t i = 0; i < local.size(); ++i) local[i].tensor.copy_(parallel::cut_out(whole[i].tensor, shard.parameters[i].local_shard));
    model::Buffers buffers = model->make_buffers(at::kFloat);
    parallel::ShardedGenerator sharded(
        {.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = buffers, .flow = one.flow});
    if (sharded.drives()) {
      std::vector<double> at;
      result.texts = sharded.generate(requests, options, [&](int64_t request, int32_t) {
        if (request == 0) at.push_back(std::chrono::duration<double>(world.clock().now()).count());
        return true;
      });
      if (at.size() > 2) result.step_s = (at.back() - at[1]) / static_cast<double>(at.size() - 2);
      sharded.close();
    } else {
      sharded.follow();
    }
    const parallel::ExpertTraffic own = sharded.expert_traffic();
    const std::lock_guard lock(mutex);
    result.traffic.rows += own.rows, result.traffic.moved += own.moved;
  };
  for (const std::exception_ptr& error : comm::LocalNetwork(one.ranks, network).run(body))
    if (error) std::rethrow_exception(error);
  return result;
}

parallel::ExpertTables tables_of_placement(const planner::ExpertPlacement& placement) {
  parallel::ExpertTables tables;
  for (int layer = 0; layer < placement.layers(); ++layer) tables.push_back(placement.table(layer));
  return tables;
}

// Tokens that differ, and the largest difference of a log-probability.
struct TextDifference {
  double tokens = 0, log_probability = 0;
};

TextDifference difference_of(const std::vector<model::GeneratedText>& a, const std::vector<model::GeneratedText>& b) {
  TextDifference found;
  for (size_t i = 0; i < a.size(); ++i) {
    found.tokens += std::abs(static_cast<double>(a[i].ids.size()) - static_cast<double>(b[i].ids.size()));
    for (size_t t = 0; t < std::min(a[i].ids.size(), b[i].ids.size()); ++t) {
      found.tokens += a[i].ids[t] != b[i].ids[t];
      found.log_probability = std::max<double>(found.log_probability, std::abs(a[i].log_probabilities[t] - b[i].log_probabilities[t]));
    }
  }
  return found;
}

comm::LinkModel links_of_10_ms(double bytes_per_s) {
  comm::LinkModel link;
  link.latency = std::chrono::milliseconds(10);
  link.jitter = 0;
  link.bytes_per_s = bytes_per_s;
  return link;
}

void exflow_tokens(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::vector<model::GenerateRequest> requests = prompts_from(text_to_decode(options, 0, 200), 64, options.seed);
  for (const int64_t top_k : {1, 2}) {
    const model::DecoderShape shape = decoding_shape(6, top_k);
    const at::Tensor weights = random_weights(*model::make_decoder(shape), options.seed);
    const ExpertDecoding alone = decode_along_ep({.shape = shape, .weights = weights}, requests, 64);
    TextDifference most;
    for (const int ranks : {2, 4}) {
      log.info("64 texts of 64 tokens, top {}, {} ranks", top_k, ranks);
      const auto random = planner::random_placement(6, 8, ranks, options.seed + static_cast<uint64_t>(ranks));
      const ExpertDecoding found = decode_along_ep(
          {.shape = shape, .weights = weights, .ranks = ranks, .flow = parallel::ExpertFlow::exflow, .tables = tables_of_placement(random)},
          requests, 64);
      const TextDifference one = difference_of(found.texts, alone.texts);
      most.tokens += one.tokens, most.log_probability = std::max(most.log_probability, one.log_probability);
    }
    findings.at_most(
        fmt::format("5. tokens of 64 greedy texts of 64 on 2 and 4 ranks that differ from one rank's (top-{}, random placements)", top_k),
        0, most.tokens, 0);
    findings.at_most(fmt::format("5. difference of their log-probabilities (top-{})", top_k), 0, most.log_probability, 1e-5);
  }
}

void exflow_trained(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("training a mixture of experts");
  const std::string text = options.scratch + "/train.txt", out = options.scratch + "/moe";
  base::write_atomically(text, text_to_decode(options, 0, 1000));
  train_layout({small_decoder(options, {"data.path=" + text, "model.kind=mixtral", "model.layers=4", "model.embed=64", "model.heads=4",
                                        "model.kv_heads=2", "model.mlp=64", "model.moe.experts=8", "model.moe.top_k=1", "data.length=64",
                                        "train.global_batch=12", fmt::format("train.steps={}", options.full ? 500 : 300),
                                        "optim.warmup_steps=20", "optim.learning_rate=0.003"}),
                1, out});
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(out, quiet);
  const auto model = model::make_decoder(opened.shape);
  const model::FlatWeights weights(model->layout(), at::empty({model->elements()}));
  opened.load_into(weights.layout().views(weights.flat()));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  const auto affinity_of = [&](const std::string& of, size_t most) {
    std::vector<int64_t> tokens;
    for (size_t i = 0; i < std::min(most, of.size()); ++i) tokens.push_back(static_cast<unsigned char>(of[i]));
    return planner::count_affinity(planner::record_routing({*model, weights, buffers}, tokens, 64), 8);
  };
  const std::string held_out = text_to_decode(options, 100'000, 60);
  const planner::Affinity traced = affinity_of(base::read_file(text, int64_t{64} << 20), 2000), judged = affinity_of(held_out, 8000);
  const planner::ExpertPlacement placed = planner::place_experts(traced, {.ranks = 4, .seed = options.seed});
  const auto leaving = [&](const planner::ExpertPlacement& placement) {
    return 1 - planner::count_hops(placement, judged, 0).kept_fraction();
  };
  double random = 0;
  for (uint64_t i = 0; i < 20; ++i) random += leaving(planner::random_placement(4, 8, 4, options.seed + i)) / 20;
  const planner::ExpertPlacement contiguous = planner::contiguous_placement(4, 8, 4);
  findings.at_most("6. transitions that leave their rank, over contiguous (trained model, placed by 2,000 tokens, held-out text)", 1,
                   leaving(placed) / leaving(contiguous), 0.8);
  findings.at_most("6. the same over the mean of 20 random placements", 1, leaving(placed) / random, 0.75);

  const std::vector<model::GenerateRequest> requests = prompts_from(held_out, 16, options.seed);
  const auto moved = [&](const planner::ExpertPlacement& placement) {
    const ExpertDecoding found = decode_along_ep({.shape = opened.shape,
                                                  .weights = weights.flat(),
                                                  .ranks = 4,
                                                  .flow = parallel::ExpertFlow::exflow,
                                                  .tables = tables_of_placement(placement)},
                                                 requests, 32);
    return static_cast<double>(found.traffic.moved) / static_cast<double>(found.traffic.rows);
  };
  const double before = moved(contiguous), after = moved(placed);
  findings.at_most("6. rows that moved to another rank while 16 texts of 32 tokens were decoded, over contiguous", 1, after / before, 0.8);
}

void exflow_speed(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("links of 10 ms");
  const std::vector<model::GenerateRequest> requests = prompts_from(text_to_decode(options, 0, 200), 16, options.seed);
  const auto step = [&](parallel::ExpertFlow flow, int64_t layers, double bytes_per_s) {
    const model::DecoderShape shape = decoding_shape(layers, 1);
    const at::Tensor weights = random_weights(*model::make_decoder(shape), options.seed);
    return decode_along_ep({.shape = shape, .weights = weights, .ranks = 4, .flow = flow, .link = links_of_10_ms(bytes_per_s)}, requests, 6)
        .step_s;
  };
  using parallel::ExpertFlow;
  const double ep = step(ExpertFlow::ep, 6, 10e6), exflow = step(ExpertFlow::exflow, 6, 10e6);
  findings.at_most("7. time of a decode iteration over that of two exchanges a layer (4 ranks, 10 ms, 10 MB/s, 6 layers, 16 texts)", 1,
                   exflow / ep, 0.65);
  // How many 10 ms a further layer takes, where bytes cost nothing: exchanges that wait for each other.
  const auto trips = [&](ExpertFlow flow) { return (step(flow, 6, 1e15) - step(flow, 2, 1e15)) / (4 * 0.010); };
  const double of_ep = trips(ExpertFlow::ep), of_exflow = trips(ExpertFlow::exflow);
  findings.at_least("7. blocking exchanges of a layer, flow ep: milliseconds that a further layer takes, over 10", 2, of_ep, 1.99);
  findings.at_most("7. blocking exchanges of a layer, ExFlow", of_ep, of_exflow, 1.01);
}

}  // namespace

void prove_exflow(const ProofOptions& options, Findings& findings, base::Log& log) {
  planted(options, findings, log);
  uniform(options, findings, log);
  held_out(options, findings, log);
  nodes(options, findings, log);
  exflow_tokens(options, findings, log);
  exflow_trained(options, findings, log);
  exflow_speed(options, findings, log);
}

}  // namespace cairn::study
