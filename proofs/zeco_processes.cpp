// What an all-scan takes, and what of it a layer hides, measured with the clock: eight processes, sockets that --links slows down.
#include "proofs/zeco_processes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/context/linear_attention.h"
#include "study/claims.h"
#include "study/forked_ranks.h"

namespace cairn::study {
namespace {

using model::LinearForm;

constexpr int64_t kHeads = 4, kKeys = 128, kValues = 256, kStateBytes = 4 * kHeads * kKeys * kValues;
constexpr double kBytesPerS = 10e6, kLatencyS = 1e-3;

comm::LinkModel slow_cards() {
  return {.latency = std::chrono::milliseconds(1), .bytes_per_s = kBytesPerS, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
}

// The time of an act on this rank, which all ranks begin together, and what it sent.
struct Timed {
  double seconds = 0;
  int64_t bytes = 0;
};
Timed timed(comm::World& world, const std::function<void()>& act) {
  const base::RealClock clock;
  world.everyone().barrier().wait_host();
  const int64_t before = world.ledger().total(comm::Purpose::activation).bytes;
  const auto begun = clock.now();
  act();
  return {base::seconds(clock.now() - begun), world.ledger().total(comm::Purpose::activation).bytes - before};
}

// By kind of run: the slowest rank of each round, best round; and bytes of each rank in one round.
struct Measured {
  std::vector<double> seconds;
  std::vector<std::vector<int64_t>> bytes;  // by rank, by kind
};

// Rounds of all kinds, one after the other, so that what else the machine does meets all of them.
Measured measure(int ranks, const ProofOptions& options, int rounds, size_t kinds,
                 const std::function<std::function<void(size_t kind)>(comm::World&)>& prepare) {
  const std::vector<std::vector<double>> found = on_forked_ranks(ranks, slow_cards(), options.scratch, [&](comm::World& world) {
    const std::function<void(size_t)> act = prepare(world);
    std::vector<double> numbers;
    for (int round = 0; round < rounds; ++round)
      for (size_t kind = 0; kind < kinds; ++kind) {
        const Timed one = timed(world, [&] { act(kind); });
        numbers.push_back(one.seconds), numbers.push_back(static_cast<double>(one.bytes));
      }
    return numbers;
  });
  Measured all{std::vector<double>(kinds, 1e30), std::vector(static_cast<size_t>(ranks), std::vector<int64_t>(kinds))};
  for (size_t round = 0; round < static_cast<size_t>(rounds); ++round)
    for (size_t kind = 0; kind < kinds; ++kind) {
      double slowest = 0;
      for (size_t rank = 0; rank < found.size(); ++rank) {
        const size_t at = 2 * (round * kinds + kind);
        slowest = std::max(slowest, found[rank].at(at));
        all.bytes[rank][kind] = static_cast<int64_t>(found[rank].at(at + 1));
      }
      all.seconds[kind] = std::min(all.seconds[kind], slowest);
    }
  return all;
}

// Kinds: an all-scan in 16 blocks, in one, an all-gather.
Measured measure_collectives(int ranks, const ProofOptions& options, int rounds) {
  return measure(ranks, options, rounds, 3, [](comm::World& world) -> std::function<void(size_t)> {
    const at::Tensor state = at::ones({kHeads, kKeys, kValues}), before = at::empty_like(state), factors = at::full({kHeads, kKeys}, 0.5);
    const at::Tensor all = at::empty({world.size(), kHeads, kKeys, kValues});
    constexpr comm::Label kLabel{comm::Purpose::activation, "states"};
    return [=, &world](size_t kind) {
      if (kind == 2) return world.everyone().all_gather(all, state, kLabel).wait_host();
      world.everyone().all_scan(before, state, factors, {.blocks = kind == 0 ? 16 : 1}, kLabel).wait_host();
    };
  });
}

}  // namespace

void zeco_collective_of_processes(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("the collective, on processes");
  const Measured eight = measure_collectives(8, options, 5);
  const double scan = eight.seconds[0], chain = eight.seconds[1], gather = eight.seconds[2];
  log.info("all-scan in 16 blocks {:.1f} ms, in one {:.1f} ms, all-gather {:.1f} ms", scan * 1e3, chain * 1e3, gather * 1e3);
  findings.at_least("2. 8 processes, cards of 80 Mbit/s, 1 ms: time of an all-gather of the states to that of an all-scan in 16 blocks",
                    gather, gather / scan, 3);
  findings.at_least("2. likewise, of a chain without blocks", chain, chain / scan, 3);
  const double formula = 22 * (static_cast<double>(kStateBytes) / 16 / kBytesPerS + kLatencyS);
  findings.at_most("2. likewise: difference of the measured time from the formula (K + P - 2) (S / (K B) + l), relative", formula,
                   std::abs(scan / formula - 1), 0.25);
  const Measured four = measure_collectives(4, options, 1);
  for (const Measured* one : {&four, &eight}) {
    int64_t most = 0, least = int64_t{1} << 60;
    for (size_t rank = 0; rank + 1 < one->bytes.size(); ++rank)
      most = std::max(most, one->bytes[rank][0]), least = std::min(least, one->bytes[rank][0]);
    const auto states = [](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kStateBytes); };
    findings.at_most(fmt::format("2. states sent by a process of {} (most)", one->bytes.size()), 1, states(most), 1);
    findings.at_least(fmt::format("2. states sent by a process of {}, but for the last (least)", one->bytes.size()), 1, states(least), 1);
  }
}

namespace {

enum Kind : size_t { kNone, kZeco, kLasp2, kLasp1, kKinds };

LinearForm form_of(size_t kind) {
  return kind == kLasp1 ? LinearForm::lasp1 : kind == kLasp2 ? LinearForm::lasp2 : LinearForm::zeco;
}

struct OverlapCase {
  int ranks = 8;
  int64_t tokens = 512, chunk = 64;
  // Above 0: attention within chunks takes so long beside the processor, as on a device; 0: as long as it takes.
  double device_s = 0;
  bool backward = false;
};

Measured measure_layer(const OverlapCase& c, const ProofOptions& options) {
  return measure(c.ranks, options, 5, kKinds, [&c](comm::World& world) -> std::function<void(size_t)> {
    const at::Tensor keys = at::randn({1, c.tokens, kHeads, kKeys}), values = at::randn({1, c.tokens, kHeads, kValues});
    kernels::LinearAttention on{keys, keys, values, at::full(keys.sizes(), -0.1)};
    on.chunk = c.chunk;
    const at::Tensor out = at::empty_like(values), dg = at::empty_like(keys);
    const kernels::LinearGradients into{at::empty_like(keys), at::empty_like(keys), at::empty_like(values)};
    int64_t steps = 0;
    kernels::attend_within_chunks(out, on, [&] { ++steps; });
    const std::chrono::nanoseconds step(static_cast<int64_t>(c.device_s / static_cast<double>(steps) * 1e9));
    return [=, &world](size_t kind) {
      model::LinearContext context{.group = kind == kNone ? nullptr : &world.everyone(), .form = form_of(kind)};
      if (c.device_s > 0) context.between = [&world, step] { world.timer(world.clock().now() + step).wait_host(); };
      const model::LinearBorders borders = model::linear_attention(out, on, context);
      if (c.backward) model::linear_attention_backward(into, dg, on, values, borders.initial, context);
    };
  });
}

}  // namespace

void zeco_overlap_of_processes(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto layer = [&](const char* what, const OverlapCase& c) {
    const Measured found = measure_layer(c, options);
    log.info("{}: {:.0f} ms without communication, zeco {:.0f} ms, lasp2 {:.0f} ms, lasp1 {:.0f} ms", what, found.seconds[kNone] * 1e3,
             found.seconds[kZeco] * 1e3, found.seconds[kLasp2] * 1e3, found.seconds[kLasp1] * 1e3);
    return found.seconds;
  };
  const auto zeco_hides = [&](const char* what, const std::vector<double>& seconds) {
    findings.at_most(fmt::format("3. {}: time of a layer with zeco to that without communication", what), seconds[kNone],
                     seconds[kZeco] / seconds[kNone], 1.1);
  };
  // The all-scan takes 0.09 s, the all-gather 0.37 s.
  for (const bool backward : {false, true}) {
    const std::string what = fmt::format("8 processes, within chunks 0.15 s beside the processor, {}", backward ? "both passes" : "forward");
    const std::vector<double> seconds = layer(what.c_str(), {.device_s = 0.15, .backward = backward});
    zeco_hides(what.c_str(), seconds);
    findings.at_least(fmt::format("3. {}: likewise with lasp2", what), seconds[kNone], seconds[kLasp2] / seconds[kNone], 1.4);
  }
  const char* two = "2 processes, a core each, 4,096 tokens, computed by the processor";
  zeco_hides(two, layer(two, {.ranks = 2, .tokens = 4096, .chunk = 256}));
  const char* shared = "8 processes on the cores of this machine, 2,048 tokens, computed by the processor";
  zeco_hides(shared, layer(shared, {.tokens = 2048, .chunk = 256}));
}

}  // namespace cairn::study
