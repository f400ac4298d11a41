// S2-Attention, trained: the held-out loss beside dense attention, and a needle that lies anywhere in a long text.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "proofs/layout_run.h"
#include "proofs/markov_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

// The sheet's model: bytes, 1,024 positions, a window of 4 blocks of 16, stride 8 over 8 heads.
const Assignments kModel{"model.layers=6", "model.embed=256", "model.heads=8", "model.kv_heads=8", "model.mlp=704", "data.length=1024"};
const Assignments kPattern{"model.attention.type=s2", "model.attention.block=16", "model.attention.local_blocks=4",
                           "model.attention.stride=8"};
const Assignments kEverySecondDense{"model.attention.dense_layers=every 2"};
// All heads see the same blocks, in every layer: seven in eight of what lies beyond the window is never seen.
const Assignments kHomogeneous{"model.attention.homogeneous=true", "model.attention.allow_partial_cover=true"};

double trained(const ProofOptions& options, base::Log& log, const std::string& name, int64_t steps, const std::vector<Assignments>& parts) {
  Assignments sets{fmt::format("train.steps={}", steps), fmt::format("eval.every={}", steps),
                   fmt::format("optim.warmup_steps={}", steps / 20), "optim.schedule=cosine"};
  for (const Assignments& part : parts) sets.insert(sets.end(), part.begin(), part.end());
  const fs::path out = fs::path(options.scratch) / name;
  log.info("{}: {} steps", name, steps);
  train_layout({small_decoder(options, sets), 1, out});
  const double loss = held_out_loss(out);
  log.info("  held-out loss {:.4f}", loss);
  return loss;
}

// Records whose prompt is a long row of small letters with one capital letter somewhere in it. The answer is that letter.
fs::path write_needles(const ProofOptions& options, int64_t records) {
  constexpr int64_t kLetters = 900;
  const fs::path file = fs::path(options.scratch) / "needles.jsonl";
  std::ofstream out(file);
  const base::Random random = base::Random(options.seed).for_name("needles");
  for (int64_t record = 0; record < records; ++record) {
    std::string prompt;
    const auto draw = [&](int64_t position, uint64_t below) {
      return random.below(static_cast<uint64_t>(record * (kLetters + 2) + position), below);
    };
    for (int64_t i = 0; i < kLetters; ++i) prompt += static_cast<char>('a' + draw(i, 16));
    const char needle = static_cast<char>('A' + draw(kLetters, 16));
    prompt[draw(kLetters + 1, kLetters)] = needle;
    out << fmt::format(R"({{"prompt": "{}", "completion": "{}"}})", prompt, needle) << "\n";
  }
  return file;
}

}  // namespace

void prove_s2_quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Assignments text{"data.stories_bytes=8000000", "train.global_batch=8", "eval.samples=64", "optim.learning_rate=0.001"};
  const double dense = trained(options, log, "text-dense", 800, {kModel, text});
  const double sparse = trained(options, log, "text-sparse", 800, {kModel, text, kPattern, kEverySecondDense});
  findings.at_most("5. held-out loss on text with every second layer sparse, of the loss of dense attention", 1, sparse / dense, 1.02);
  // An answer is one letter and the end of the turn. A wrong letter costs at least ln 2, so the mean of two tokens bounds the errors.
  ProofOptions no_text = options;
  no_text.data.clear();
  const Assignments needles{"data.path=" + write_needles(options, 20000).string(),
                            "data.template=plain",
                            "data.packing=documents",
                            "train.global_batch=16",
                            "eval.samples=256",
                            "optim.learning_rate=0.001"};
  const auto found = [&](const std::string& name, const std::vector<Assignments>& parts) {
    return 1 - 2 * trained(no_text, log, name, 1000, parts) / 0.6931;
  };
  const double found_sparse = found("needle-sparse", {kModel, needles, kPattern, kEverySecondDense});
  findings.at_least("5. share of needles that are found, least by the held-out loss", 0, found_sparse, 0.95);
  findings.at_most("5. the same where all heads see the same blocks and no layer is dense", found_sparse,
                   found("needle-homogeneous", {kModel, needles, kPattern, kHomogeneous}), found_sparse - 0.1);
}

}  // namespace cairn::study
