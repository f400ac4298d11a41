// ZeRO: optimizer state, gradients and parameters sharded over the ranks of data parallelism. The baseline is plain data parallelism.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/log.h"
#include "model/decoder/decoder.h"
#include "proofs/hand_built.h"
#include "proofs/layout_run.h"
#include "proofs/timed_model.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

// Six layers of odd widths, so that no number of ranks divides anything evenly.
base::Recipe six_layers(const ProofOptions& options, const Assignments& sets) {
  base::Recipe recipe =
      small_decoder(options, {"model.layers=6", "model.embed=30", "model.heads=3", "model.kv_heads=1", "model.mlp=53", "model.tied=false"});
  return with(std::move(recipe), sets);
}

Assignments stage(int zero) { return zero == 0 ? Assignments{} : Assignments{fmt::format("memory.zero={}", zero)}; }

constexpr int64_t kSamples = 12, kLength = 9, kVocab = 37;

// A decoder with one more parameter, that no block uses.
HandRun unused_parameter(const ProofOptions& options, int ranks, int zero) {
  HandRun run;
  run.model = [] {
    model::DecoderShape shape;
    shape.vocab = kVocab, shape.embed = 20, shape.layers = 3, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 10, shape.mlp = 23;
    shape.length = kLength, shape.tied = false;
    auto model = model::make_decoder(shape);
    model->add(model::Parameter{.name = "unused.weight", .shape = {7, 11}});
    return model;
  };
  run.objective = model::make_next_token;
  run.batch = [seed = options.seed](int64_t step) { return random_tokens({seed, step, kSamples, kLength, kVocab}); };
  run.loss_denominator = kSamples * kLength;
  run.plan.mesh.axes = {{zero > 0 ? "shard" : "dp", ranks}};
  run.plan.zero = zero;
  run.seed = options.seed;
  run.steps = 20;
  run.micro_batches = kSamples / ranks;
  return run;
}

// 1. The same losses, norms and parameters.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const base::Recipe recipe = six_layers(options, {"train.steps=20", "train.global_batch=24", "train.micro_batch=2"});
  const Trained one = train_layout({recipe, 1, scratch / "exact-1"});
  for (const int ranks : {4, 3}) {
    double between = 0, to_one = 0, norms = 0, parameters = 0;
    std::vector<Trained> found;
    for (const int zero : {0, 1, 2, 3, 12, 13}) {  // above 10: gradients are sharded after every micro-batch
      log.info("exactness: {} ranks, stage {}", ranks, zero % 10);
      base::Recipe laid_out = with(recipe, stage(zero % 10));
      if (zero > 10) laid_out.set("memory.accumulate_unsharded=false");
      found.push_back(train_layout({laid_out, ranks, scratch / fmt::format("exact-{}-{}", ranks, zero)}));
      to_one = std::max(to_one, largest_relative_difference(one.losses, found.back().losses));
      norms = std::max(norms, largest_relative_difference(one.norms, found.back().norms));
      parameters = std::max(parameters, largest_difference(one.parameters, found.back().parameters));
      for (const Trained& other : found) between = std::max(between, largest_relative_difference(other.losses, found.back().losses));
    }
    const std::string where = fmt::format("{} ranks, {} micro-batches of 2, 20 steps", ranks, 12 / ranks);
    findings.at_most(fmt::format("1. relative loss difference between stages 0, 1, 2, 3 ({})", where), 0, between, 1e-6);
    findings.at_most(fmt::format("1. relative loss difference to one process ({})", where), 0, to_one, 1e-5);
    findings.at_most(fmt::format("1. relative gradient norm difference to one process ({})", where), 0, norms, 1e-5);
    findings.at_most(fmt::format("1. parameter difference to one process ({})", where), 0, parameters, 1e-5);
  }
  const Trained alone = train_by_hand(unused_parameter(options, 1, 0));
  double losses = 0, norms = 0, parameters = 0;
  for (const int ranks : {4, 3})
    for (const int zero : {0, 1, 2, 3}) {
      log.info("one unused parameter: {} ranks, stage {}", ranks, zero);
      const Trained many = train_by_hand(unused_parameter(options, ranks, zero));
      losses = std::max(losses, largest_relative_difference(alone.losses, many.losses));
      norms = std::max(norms, largest_relative_difference(alone.norms, many.norms));
      parameters = std::max(parameters, largest_difference(alone.parameters, many.parameters));
    }
  findings.at_most("1. with one unused parameter, stages 0 to 3 on 4 and 3 ranks: relative loss difference", 0, losses, 1e-5);
  findings.at_most("1. with one unused parameter: relative gradient norm difference", 0, norms, 1e-5);
  findings.at_most("1. with one unused parameter: parameter difference", 0, parameters, 1e-5);
}

int64_t most(const RunStats& books, int64_t RankStats::*what) {
  int64_t largest = 0;
  for (const RankStats& rank : books.ranks) largest = std::max(largest, rank.*what);
  return largest;
}

// 2. and 3. What ranks hold, and what they send.
void memory_and_traffic(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int kRanks = 4;
  constexpr double kState = 8;  // bytes of Adam's two fp32 moments
  const base::Recipe recipe = six_layers(options, {"train.steps=8", "train.global_batch=8", "sync.dp.bucket_mib=0.05"});
  const RunStats plain = collect_stats({recipe, kRanks, 3});
  const auto elements = static_cast<double>(plain.elements);
  constexpr double gathered_once = 257 * 30 + 257 * 30 + 30;  // the table, whose gradient needs no weights; the head and the norm before it
  const auto sent = [](const RunStats& books) {
    double largest = 0;
    for (const RankStats& rank : books.ranks)
      largest = std::max(largest, static_cast<double>(rank.sent.at(comm::Purpose::gradient) + rank.sent.at(comm::Purpose::parameter)));
    return largest;
  };
  // What summing or gathering all parameters once costs a rank, from the run of plain data parallelism, which does both.
  const double ring = sent(plain) / 2;
  findings.at_most("3. plain data parallelism: bytes sent per rank and step against 2 psi (N-1)/N, off by", 0,
                   std::abs(ring / (4 * elements * (kRanks - 1) / kRanks) - 1), 0.03);
  for (const int zero : {1, 2, 3}) {
    log.info("memory and traffic: stage {}", zero);
    const RunStats books = collect_stats({with(recipe, stage(zero)), kRanks, 3});
    int64_t all = 0;
    for (const RankStats& rank : books.ranks) all += rank.optimizer;
    findings.at_most(fmt::format("2. stage {}: optimizer bytes of all ranks together against K psi, off by (bytes)", zero),
                     kRanks * kState * elements, std::abs(static_cast<double>(all) - kState * elements), 0);
    findings.at_most(
        fmt::format("2. stage {}: optimizer bytes of the fullest rank over K psi / N, beyond one element per unit (bytes)", zero),
        kState * elements, static_cast<double>(most(books, &RankStats::optimizer)) - kState * elements / kRanks,
        kState * static_cast<double>(books.unit_bytes.size()));
    if (zero >= 2) {
      const double bound = 4 * elements / kRanks + 2 * static_cast<double>(books.unit_bytes.front());
      findings.at_most(
          fmt::format("2. stage {}: most gradient bytes during a step, against 4 psi / N + 2 buckets (share of that bound)", zero),
          4 * elements / bound, static_cast<double>(most(books, &RankStats::gradients_most)) / bound, 1);
    }
    if (zero == 3) {
      const auto two = static_cast<double>(books.unit_bytes.at(0) + books.unit_bytes.at(1));
      findings.at_most("2. stage 3: most bytes of parameters brought together at once (two units are this many at most)", 4 * elements,
                       static_cast<double>(most(books, &RankStats::gathered_most)), two);
      findings.at_most("2. stage 3: parameter bytes between steps over 4 psi / N", kRanks,
                       static_cast<double>(most(books, &RankStats::parameters)) * kRanks / (4 * elements), 1.01);
    }
    const double volumes = zero == 3 ? 3 : 2;
    // (The last block's parameters stay from its forward to its backward, and a lookup's gradient needs none.)
    const double kept = zero == 3 ? 4 * gathered_once * (kRanks - 1) / kRanks : 0;
    findings.at_most(fmt::format("3. stage {}: bytes sent per rank and step over those of plain data parallelism, both measured", zero), 1,
                     sent(books) / sent(plain), 1.03 * volumes / 2);
    findings.at_most(fmt::format("3. stage {}: against {:g} of them{}, off by", zero, volumes / 2,
                                 zero == 3 ? ", less the table and the last block, which are gathered once" : ""),
                     0, std::abs(sent(books) / (volumes * ring - kept) - 1), 0.03);
  }
}

// 4. Communication behind compute, in virtual time.
void overlap(Findings& findings, base::Log& log) {
  log.info("overlap in virtual time");
  ShardedRun run;
  run.blocks = {.blocks = 12, .forward_s = 0.010, .input_s = 0.010, .weight_s = 0.010, .parameter_elements = 4003};

  const double compute = 12 * 0.030;
  for (const int zero : {3, 2}) {
    run.zero = zero;
    ShardedRun messages = run;
    messages.blocks.forward_s = messages.blocks.input_s = messages.blocks.weight_s = 0;
    messages.prefetches = messages.reduces_early = false;
    messages.link.bytes_per_s = 1e6;
    const double wanted = 0.6 * compute;
    run.link.bytes_per_s = messages.link.bytes_per_s * time_sharded_step(messages) / wanted;
    messages.link = run.link;
    const double share = time_sharded_step(messages) / compute;
    ShardedRun slow = run;
    (zero == 3 ? slow.prefetches : slow.reduces_early) = false;
    const double without = time_sharded_step(slow), overlapped = time_sharded_step(run);
    findings.at_least(
        zero == 3 ? fmt::format("4. stage 3, messages {:.2f} of compute: step without prefetch over step with it", share)
                  : fmt::format("4. stage 2, messages {:.2f} of compute: step that communicates at its end over one that overlaps", share),
        1, without / overlapped, zero == 3 ? 1.3 : 1.2);
  }
}

// 5. Saved by four ranks, continued by others.
void resharding(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  for (const int zero : {1, 2, 3}) {
    const base::Recipe recipe = with(six_layers(options, {"train.steps=15", "train.global_batch=12", "snapshot.every=10"}), stage(zero));
    const Trained whole = train_layout({recipe, 4, scratch / fmt::format("saved-{}", zero)});
    double largest = 0;
    for (const int ranks : {2, 3}) {
      log.info("resharding: stage {}, 4 ranks to {}", zero, ranks);
      const std::filesystem::path copy = scratch / fmt::format("resharded-{}-{}", zero, ranks);
      copy_up_to(scratch / fmt::format("saved-{}", zero), copy, 10);
      const Trained resumed = train_layout({recipe, ranks, copy, true});
      const auto tail = [](const std::vector<double>& all) { return std::vector<double>(all.end() - 5, all.end()); };
      largest = std::max(largest, largest_relative_difference(tail(whole.losses), tail(resumed.losses)));
    }
    findings.at_most(fmt::format("5. stage {}: saved by 4 ranks, next 5 losses on 2 and on 3 ranks against the uninterrupted run", zero), 0,
                     largest, 1e-6);
  }
}

// 6. Kept inputs of recomputed blocks in parts along tp, by memory.partition_activations: all runs measured. With the standard wiring the
// stream between blocks is in parts anyway, so whole inputs cost an all-gather in forward. The ladder wiring replicates the stream, and the
// six values that the blocks of a layer keep cost an all-gather each beside its six all-reduces, of twice the bytes: at most 1 + 6/12 with
// "on". Its default leaves them whole.
void partitioned_checkpoints(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Assignments sizes{"model.layers=6", "model.embed=48", "model.heads=4",        "model.kv_heads=2",   "model.mlp=96",
                          "train.steps=6",  "mesh.tp=2",      "train.global_batch=4", "recompute.mode=full"};
  for (const std::string wiring : {"standard", "ladder"}) {
    log.info("checkpoints over tp, {} wiring", wiring);
    const base::Recipe parts = small_decoder(options, sizes);
    const auto of = [&](const char* partition) {
      return collect_stats({with(parts, {"model.residual=" + wiring, fmt::format("memory.partition_activations={}", partition)}), 2, 2});
    };
    const RunStats on = of("on"), off = of("off"), by_default = of("auto");
    const auto kept = [](const RunStats& books) { return static_cast<double>(most(books, &RankStats::checkpoints)); };
    const auto moved = [](const RunStats& books) { return static_cast<double>(books.ranks[0].sent.at(comm::Purpose::activation)); };
    findings.at_most(fmt::format("6. {}, tp=2: bytes of kept block inputs per rank, in parts over whole ({:.0f})", wiring, kept(off)), 1,
                     kept(on) / kept(off), 0.5);
    findings.at_most(fmt::format("6. {}, tp=2: bytes along tp per step, in parts over whole", wiring), 1, moved(on) / moved(off),
                     wiring == "ladder" ? 1.5 : 1.10);
    findings.at_most(fmt::format("6. {}, tp=2: bytes along tp per step, by default over the lesser of the two", wiring), 1,
                     moved(by_default) / std::min(moved(on), moved(off)), 1);
    findings.at_most(
        fmt::format("6. {}, tp=2: relative loss difference, in parts and by default to whole", wiring), 0,
        std::max(largest_relative_difference(on.losses, off.losses), largest_relative_difference(by_default.losses, off.losses)), 0);
  }
}

}  // namespace

void prove_zero(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  memory_and_traffic(options, findings, log);
  overlap(findings, log);
  resharding(options, findings, log);
  partitioned_checkpoints(options, findings, log);
  findings.skip("7. the least N that fits, predicted", "belongs to the planner, which is not there yet");
}

}  // namespace cairn::study
