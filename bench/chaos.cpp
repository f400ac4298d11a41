// `cairn bench chaos`: islands in virtual time under random cuts, stops, kills and restarts (study/islands_chaos.h), by the number of seeds
// that hold; and planted mistakes, by the seed that finds them. `--case SEED` runs one seed again; `--steps N` runs N seeds instead of
// 10,000.
#include <algorithm>
#include <charconv>
#include <string>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "study/benches.h"
#include "study/islands_chaos.h"

namespace cairn::study {
namespace {

constexpr int64_t kSeeds = 10000, kSeedsForMistake = 1000;

struct Mistake {
  const char* name;
  ChaosFaults faults;
};

std::vector<Mistake> mistakes() {
  return {{"decide without majority", {.log = {.decide_without_majority = true}}},
          {"forget the vote", {.log = {.forget_vote = true}}},
          {"apply before commit", {.log = {.apply_before_commit = true}}},
          {"answer from an old term", {.log = {.answer_from_old_term = true}}},
          {"drop a relay", {.channels = {.drop_relayed = true}}},
          {"reuse an incarnation", {.reuse_incarnation = true}}};
}

// A row that counts: `ours` of `peer`.
BenchRow count_row(const std::string& name, int64_t ours, int64_t of, bool pass, const std::string& unit) {
  return {.case_name = name,
          .ours = static_cast<double>(ours),
          .peer = static_cast<double>(of),
          .unit = unit,
          .ratio = static_cast<double>(ours) / static_cast<double>(std::max<int64_t>(1, of)),
          .goal = 0,
          .pass = pass};
}

BenchRow run_seeds(int64_t first, int64_t seeds, base::Log& log) {
  const base::RealClock clock;
  const std::chrono::nanoseconds begun = clock.now();
  std::chrono::nanoseconds said = begun;
  int64_t good = 0, rounds = 0, rejoined = 0, relayed = 0;
  for (int64_t seed = first; seed < first + seeds; ++seed) {
    const ChaosResult result = islands_chaos(static_cast<uint64_t>(seed));
    if (result.violation.empty())
      ++good;
    else
      log.warn("seed {}, {} islands: {}", seed, result.islands, result.violation);
    rounds += result.rounds;
    rejoined += result.rejoined;
    relayed += result.relayed;
    const std::chrono::nanoseconds now = clock.now();
    if (now - said < std::chrono::seconds(10)) continue;
    said = now;
    const int64_t done = seed - first + 1;
    log.info("{} of {} seeds, about {:.0f} s left", done, seeds,
             base::seconds(now - begun) / static_cast<double>(done) * static_cast<double>(seeds - done));
  }
  log.info("{} rounds, {} times an island came back, {} messages relayed", rounds, rejoined, relayed);
  return count_row("seeds that hold", good, seeds, good == seeds, "seeds");
}

}  // namespace

std::vector<BenchRow> bench_chaos(const BenchOptions& options, base::Log& log) {
  if (!options.only.empty()) {
    int64_t seed = 0;
    const auto read = std::from_chars(options.only.data(), options.only.data() + options.only.size(), seed);
    if (read.ec != std::errc() || read.ptr != options.only.data() + options.only.size())
      base::fail_input("--case = {}: must be the number of a seed", options.only);
    return {run_seeds(seed, 1, log)};
  }
  std::vector<BenchRow> rows{run_seeds(0, options.steps > 0 ? options.steps : kSeeds, log)};
  for (const Mistake& mistake : mistakes()) {
    int64_t seed = 0;
    while (seed < kSeedsForMistake && islands_chaos(static_cast<uint64_t>(seed), mistake.faults).violation.empty()) ++seed;
    rows.push_back(count_row(fmt::format("found: {}", mistake.name), seed + 1, kSeedsForMistake, seed < kSeedsForMistake, "seeds"));
  }
  return rows;
}

}  // namespace cairn::study
