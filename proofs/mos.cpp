// MoS: adapters of all layers put together from shared pools of pieces. The baselines are LoRA of the same memory and of the same rank.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/files/disk.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/model.h"
#include "proofs/markov_runs.h"
#include "proofs/mos_serving.h"
#include "snapshot/adapter.h"
#include "snapshot/adapter_pools.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

const std::vector<std::string> kAll{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
constexpr const char* kAllKeys = R"(model.adapter.targets=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"])";

model::AdapterShape pools(int64_t rank, int64_t equivalent, int64_t private_rank, int64_t shards) {
  model::AdapterShape shape{.rank = rank, .alpha = 2.0 * static_cast<double>(rank), .targets = kAll, .kind = model::AdapterKind::mos};
  shape.equivalent_rank = equivalent, shape.private_rank = private_rank, shape.shards = shards;
  return shape;
}

Assignments keys_of(const model::AdapterShape& s) {
  Assignments keys{fmt::format("model.adapter.kind={}", base::enum_name(model::kAdapterKindNames, s.kind)),
                   fmt::format("model.adapter.rank={}", s.rank), fmt::format("model.adapter.alpha={}", s.alpha), kAllKeys};
  if (s.kind == model::AdapterKind::lora) return keys;
  for (const std::string& one :
       {fmt::format("model.adapter.equivalent_rank={}", s.equivalent_rank), fmt::format("model.adapter.private_rank={}", s.private_rank),
        fmt::format("model.adapter.shards_per_vector={}", s.shards), fmt::format("model.adapter.dissociate={}", s.dissociate),
        fmt::format("model.adapter.share_rows={}", s.share_rows)})
    keys.push_back(one);
  return keys;
}

model::AdapterShape lora(int64_t rank) { return {.rank = rank, .alpha = 2.0 * static_cast<double>(rank), .targets = kAll}; }

// 1. Parameters of adapters on a 7B shape, read off the model.
void counting(Findings& findings) {
  const model::DecoderShape shape{.vocab = 32000, .embed = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128, .mlp = 11008};
  const auto trained = [&](const model::AdapterShape& adapter) {
    int64_t elements = 0;
    const auto decoder = model::make_decoder(shape, adapter);
    for (const model::Parameter& p : decoder->parameters())
      if (p.role == model::Parameter::Role::adapter) elements += p.elements();
    return static_cast<double>(elements);
  };
  const auto exactly = [&](const std::string& name, double found, double expected) {
    findings.at_most("1. trained parameters of a 7B shape, " + name + ": difference to " + fmt::format("{:.0f}", expected), expected,
                     std::abs(found - expected), 0);
  };
  exactly("LoRA of rank 2", trained(lora(2)), 4'997'120);
  exactly("MoS of rank 8, equivalent rank 2", trained(pools(8, 2, 1, 4)), 4'997'120);
  exactly("MoS of rank 32, equivalent rank 8", trained(pools(32, 8, 2, 4)), 19'988'480);
  exactly("LoRA of rank 8", trained(lora(8)), 19'988'480);
  exactly("LoRA of rank 64", trained(lora(64)), 159'907'840);
}

snapshot::Pretrained opened(const std::filesystem::path& run) {
  base::Log quiet = base::Log::quiet();
  return snapshot::open_pretrained(run.string(), quiet);
}

// An adapter with random values for a model: a of every layer from a random source, b zero.
struct Twin {
  std::filesystem::path as_lora, as_pools;
};
Twin write_twins(const std::filesystem::path& scratch, const model::DecoderShape& shape, int64_t rank, uint64_t seed) {
  snapshot::Adapter low{.shape = lora(rank), .tensors = {}}, shared{.shape = pools(rank, rank, rank, 1), .tensors = {}};
  std::map<std::string, std::vector<at::Tensor>> a, b;
  const auto decoder = model::make_decoder(shape, low.shape);
  const std::string before = model::family(shape.family).names.layers + ".";
  for (const model::Parameter& p : decoder->parameters()) {
    if (p.role != model::Parameter::Role::adapter) continue;
    const at::Tensor value = at::zeros(p.shape);
    const bool first = p.name.ends_with(".lora_A.weight");
    if (first) kernels::fill_normal(value.view({-1}), base::Random(seed).for_name(p.name), 0, p.deviation);
    low.tensors.push_back({p.name, value});
    const std::string layer = p.name.substr(0, p.name.find(".lora_"));
    const std::string kind = layer.substr(layer.find('.', before.size()) + 1);
    (first ? a : b)[kind].push_back(first ? value : value.t());
  }
  for (const auto& [kind, rows] : a) shared.tensors.push_back({"adapters." + kind + ".pool_a", at::cat(rows)});
  for (const auto& [kind, rows] : b) shared.tensors.push_back({"adapters." + kind + ".pool_b", at::cat(rows).contiguous()});
  Twin twin{scratch / "twin-lora", scratch / "twin-pools"};
  snapshot::write_adapter(twin.as_lora, low, shape, "base", base::real_disk());
  snapshot::write_adapter(twin.as_pools, shared, shape, "base", base::real_disk());
  return twin;
}

// 2. All vectors private and whole: LoRA.
void special_case(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& base, Findings& findings) {
  constexpr int64_t kSteps = 50;
  const std::filesystem::path scratch = options.scratch;
  const model::DecoderShape shape = opened(base).shape;
  const Twin twin = write_twins(scratch, shape, 4, options.seed);
  const auto trained = [&](const std::string& name, const Assignments& sets, int ranks = 1) {
    return train_layout({runs.recipe(base, kSteps, sets, options.seed), ranks, scratch / name});
  };
  const Trained as_lora = trained("as-lora", {"model.adapter.from=" + twin.as_lora.string()});
  const Trained as_pools = trained("as-pools", {"model.adapter.from=" + twin.as_pools.string()});
  findings.at_most("2. rank = equivalent rank = private rank, against LoRA over 50 steps: largest relative difference of losses", 0,
                   largest_relative_difference(as_lora.losses, as_pools.losses), 1e-6);
  const auto merged = [&](const std::string& name) {
    Tensors all;
    const snapshot::Pretrained model = opened(scratch / name);
    const auto decoder = model::make_decoder(model.shape);
    const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
    model.load_into(views);
    for (const mesh::NamedTensor& one : views) all[one.name] = one.tensor;
    return all;
  };
  findings.at_most("2. and of merged weights, largest difference", 0, largest_difference(merged("as-lora"), merged("as-pools")), 1e-6);

  const Assignments shared = keys_of(pools(5, 2, 1, 4));
  const Trained alone = trained("mos-1", shared);
  for (const auto& [name, ranks, sets] :
       std::vector<std::tuple<std::string, int, Assignments>>{{"dp=2", 2, {"mesh.dp=2"}},
                                                              {"dp=4 with ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}},
                                                              {"pp=2", 2, {"mesh.pp=2", "train.micro_batch=24"}},
                                                              {"tp=2", 2, {"mesh.tp=2"}}}) {
    Assignments all = shared;
    all.insert(all.end(), sets.begin(), sets.end());
    findings.at_most("2. " + name + " against one rank: largest relative difference of losses", 0,
                     largest_relative_difference(trained("mos-" + name, all, ranks).losses, alone.losses), 1e-5);
  }
}

// What a run's adapter adds to one layer: b a.
at::Tensor added_matrix(const std::filesystem::path& run, const std::string& module) {
  const snapshot::Pretrained model = opened(run);
  at::Tensor a, b;
  for (const mesh::NamedTensor& one : snapshot::low_rank_tensors(*model.adapter, model.shape)) {
    if (one.name == module + ".lora_A.weight") a = one.tensor;
    if (one.name == module + ".lora_B.weight") b = one.tensor;
  }
  return at::matmul(b, a);
}

double numerical_rank(const at::Tensor& matrix) {
  // By Gram-Schmidt with pivoting, which needs no library of decompositions.
  at::Tensor rest = matrix.to(at::kDouble).clone();
  const double all = rest.norm().item<double>();
  double rank = 0;
  for (int64_t i = 0; i < std::min(rest.size(0), rest.size(1)); ++i) {
    const at::Tensor norms = rest.mul(rest).sum(0);
    const int64_t pivot = norms.argmax().item<int64_t>();
    const double length = std::sqrt(norms[pivot].item<double>());
    if (length < 1e-5 * all) break;
    const at::Tensor direction = (rest.select(1, pivot) / length).clone();
    rest = rest - at::outer(direction, at::mm(rest.t(), direction.unsqueeze(1)).squeeze(1));
    ++rank;
  }
  return rank;
}

// 4. Adaptation to another source: the same memory, more rank.
struct AdaptedArms {
  std::map<std::string, std::vector<double>> losses;  // by arm, then by seed
  double mean(const std::string& arm) const {
    double sum = 0;
    for (const double loss : losses.at(arm)) sum += loss;
    return sum / static_cast<double>(losses.at(arm).size());
  }
  // By how much an arm is above another, in the seed where that is the least.
  double least_above(const std::string& arm, const std::string& other) const {
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < losses.at(arm).size(); ++i) least = std::min(least, losses.at(arm)[i] - losses.at(other)[i]);
    return least;
  }
};

AdaptedArms adapt_arms(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& base) {
  constexpr int64_t kSteps = 250;
  const int seeds = options.full ? 3 : 2;
  model::AdapterShape joined = pools(4, 2, 1, 4), same = pools(8, 2, 0, 4);
  joined.dissociate = false;
  same.share_rows = true;
  AdaptedArms arms;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, model::AdapterShape>>{{"lora-2", lora(2)},
                                                                                            {"lora-8", lora(8)},
                                                                                            {"mos-2-4", pools(4, 2, 1, 4)},
                                                                                            {"mos-2-8", pools(8, 2, 0, 4)},
                                                                                            {"pure-sharing", same},
                                                                                            {"mos-2-4-unsharded", pools(4, 2, 1, 1)},
                                                                                            {"mos-2-4-joined", joined}})
    for (int seed = 0; seed < seeds; ++seed) {
      Assignments sets = keys_of(shape);
      sets.push_back("optim.learning_rate=0.005"), sets.push_back("optim.weight_decay=0");
      arms.losses[name].push_back(held_out_loss(runs.adapt(name, base, kSteps, sets, options.seed + static_cast<uint64_t>(seed))));
    }
  return arms;
}

void effect(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& base, Findings& findings, base::Log& log) {
  const AdaptedArms arms = adapt_arms(options, runs, base);
  const double low = arms.mean("lora-2"), high = arms.mean("lora-8");
  findings.at_least("4. MoS of rank 8 in the memory of LoRA 2: share of the gap from LoRA 2 to LoRA 8 that it closes", 0,
                    (low - arms.mean("mos-2-8")) / (low - high), 0.25);
  findings.at_least("4. pure sharing above MoS of rank 8, nats", 0, arms.mean("pure-sharing") - arms.mean("mos-2-8"), 1e-6);
  findings.at_least("4. LoRA 2 above MoS of rank 4 with private rows in the same memory, in every seed, nats", 0,
                    arms.least_above("lora-2", "mos-2-4"), 1e-6);
  findings.at_least("4. pure sharing above MoS of rank 4, mean of the seeds, nats", 0, arms.mean("pure-sharing") - arms.mean("mos-2-4"),
                    1e-6);
  for (size_t i = 0; i < arms.losses.at("lora-2").size(); ++i)
    log.info("seed {}: LoRA 2 above MoS of rank 4 {:+.4f}", options.seed + i, arms.losses.at("lora-2")[i] - arms.losses.at("mos-2-4")[i]);
  log.info("differentiators of rank 4 (reported): all {:.4f}, vectors in one piece {:.4f}, a and b together {:.4f}", arms.mean("mos-2-4"),
           arms.mean("mos-2-4-unsharded"), arms.mean("mos-2-4-joined"));
  const at::Tensor added =
      added_matrix(std::filesystem::path(options.scratch) / fmt::format("mos-2-8-{}", options.seed), "model.layers.1.self_attn.q_proj");
  findings.at_most("4. rank of what MoS adds to a layer, difference to 8", 8, std::abs(numerical_rank(added) - 8), 0);
}

// 5. On a CPU the rates are reported: rows are computed together as on a GPU, and nothing else is.
void report_rates(const ProofOptions& options, Findings& findings, base::Log& log) {
  const ServingRates found = serving_rates(
      {.shape = {.vocab = 256, .embed = 64, .layers = 4, .heads = 4, .kv_heads = 4, .head_dim = 16, .mlp = 128, .length = 128},
       .adapter = pools(8, 2, 0, 4),
       .prompt = 8,
       .tokens = 16,
       .seed = options.seed});
  log.info("a batch of 16 texts (reported): {:.0f} tokens/s with one adapter, {:.0f} with 16", found.one, found.several);
  findings.skip("5. tokens/s of 16 adapters in one batch, at least half of one adapter's", "needs a GPU: --device cuda");
}

}  // namespace

void prove_mos(const ProofOptions& options, Findings& findings, base::Log& log) {
  counting(findings);
  const MarkovRuns runs(options, log, {});
  const std::filesystem::path base = runs.base("base", 1000, {"optim.learning_rate=0.003"});
  special_case(options, runs, base, findings);
  findings.skip("3. gradients of a pool that several layers share, against differences", "tests: DecoderGradients, Dropout");
  effect(options, runs, base, findings, log);
  prove_mos_serving(options, base, pools(8, 2, 0, 4), findings, log);
  report_rates(options, findings, log);
}

}  // namespace cairn::study
