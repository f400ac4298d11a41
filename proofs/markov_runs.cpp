#include "proofs/markov_runs.h"

#include <array>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr uint64_t kLetters = 32;
constexpr const char* kAlphabet = "abcdefghijklmnopqrstuvwxyz012345";
constexpr std::array<double, 4> kLikely = {0.66, 0.86, 0.95, 0.99};  // cumulative; the rest falls to any letter

}  // namespace

std::string markov_text(uint64_t source, uint64_t seed, int64_t letters) {
  const base::Random table = base::Random(source).for_purpose("markov table"), draws = base::Random(seed).for_purpose("markov draws");
  std::string text;
  uint64_t before = 0, last = 1;
  for (int64_t i = 0; i < letters; ++i) {
    const auto at = static_cast<uint64_t>(2 * i);
    const double u = draws.uniform(at);
    size_t k = 0;
    while (k < kLikely.size() && u >= kLikely[k]) ++k;
    const uint64_t next = k < kLikely.size() ? table.for_index(before * kLetters + last).below(k, kLetters) : draws.below(at + 1, kLetters);
    text += kAlphabet[next];
    before = last, last = next;
  }
  return text;
}

MarkovRuns::MarkovRuns(const ProofOptions& options, base::Log& log, Shape shape)
    : options_(options),
      log_(log),
      shape_(std::move(shape)),
      first_(std::filesystem::path(options.scratch) / "first.txt"),
      second_(options.data.empty() ? std::filesystem::path(options.scratch) / "second.txt" : std::filesystem::path(options.data)) {
  constexpr int64_t kTextLetters = 800'000;
  base::write_atomically(first_, markov_text(2 * options.seed, options.seed, kTextLetters), base::real_disk());
  if (options.data.empty())
    base::write_atomically(second_, markov_text(2 * options.seed + 1, options.seed, kTextLetters), base::real_disk());
}

base::Recipe MarkovRuns::recipe(const std::filesystem::path& from, int64_t steps, const Assignments& sets, uint64_t seed) const {
  ProofOptions seeded = options_;
  seeded.seed = seed, seeded.data = (from.empty() ? first_ : second_).string();
  Assignments all{"data.tokenizer=bytes",
                  fmt::format("data.length={}", shape_.length),
                  fmt::format("train.global_batch={}", shape_.batch),
                  fmt::format("train.steps={}", steps),
                  fmt::format("eval.every={}", steps),
                  "eval.samples=512",
                  fmt::format("snapshot.every={}", steps),
                  fmt::format("optim.warmup_steps={}", steps / 20)};
  const Assignments whole{"model.kind=" + shape_.kind,
                          fmt::format("model.layers={}", shape_.layers),
                          fmt::format("model.embed={}", shape_.embed),
                          fmt::format("model.heads={}", shape_.heads),
                          fmt::format("model.kv_heads={}", shape_.heads),
                          fmt::format("model.mlp={}", shape_.mlp)};
  if (from.empty()) all.insert(all.end(), whole.begin(), whole.end());
  if (!from.empty()) all.push_back("model.from=" + from.string());
  all.insert(all.end(), sets.begin(), sets.end());
  return small_decoder(seeded, all);
}

std::filesystem::path MarkovRuns::train(const std::string& name, const base::Recipe& recipe) const {
  const std::filesystem::path out = std::filesystem::path(options_.scratch) / name;
  train_layout({recipe, 1, out});
  log_.info("{}: held-out loss {:.4f}", name, held_out_loss(out));
  return out;
}

std::filesystem::path MarkovRuns::base(const std::string& name, int64_t steps, const Assignments& sets) const {
  return train(name, recipe({}, steps, sets, options_.seed));
}

std::filesystem::path MarkovRuns::adapt(const std::string& name, const std::filesystem::path& from, int64_t steps, const Assignments& sets,
                                        uint64_t seed) const {
  return train(fmt::format("{}-{}", name, seed), recipe(from, steps, sets, seed));
}

double held_out_loss(const std::filesystem::path& run) {
  double loss = 0;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has("eval_loss")) loss = row.number("eval_loss");
  return loss;
}

}  // namespace cairn::study
