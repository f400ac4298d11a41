// Four languages, each a Markov chain over eight letters, four of which the next language has too. Eight islands in one world, two for each
// language; held-out samples are of all four.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "data/subset.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "proofs/layout_run.h"
#include "proofs/single_merging_parts.h"
#include "snapshot/merge_models.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr size_t kLanguages = 4, kLetters = 8;
constexpr int kIslands = 8;
constexpr int64_t kLength = 24, kBlock = 40 * kLength;

char letter_of(size_t language, size_t letter) { return static_cast<char>('a' + 4 * language + letter); }

// Stretches of the languages in turn. Two letters decide on two that may come next, the first of them in 15 of 20 cases. In 2 cases it is
// any letter, so that no language stays with the few letters of a cycle.
std::string four_languages(uint64_t seed, size_t bytes) {
  const base::Random random = base::Random(seed).for_purpose("languages");
  const auto next_of = [&](size_t language, size_t before, size_t last, size_t which) {
    return random.for_index(language).below(2 * (before * kLetters + last) + which, kLetters);
  };
  const base::Random dice = random.for_purpose("dice");
  std::array<std::array<size_t, 2>, kLanguages> states{};
  std::string text;
  while (text.size() < bytes) {
    const size_t language = text.size() / kBlock % kLanguages;
    auto& [before, last] = states[language];
    const uint64_t roll = dice.below(2 * text.size(), 20);
    const size_t next = roll < 18 ? next_of(language, before, last, roll < 15 ? 0 : 1) : dice.below(2 * text.size() + 1, kLetters);
    text += letter_of(language, next);
    before = std::exchange(last, next);
  }
  return text;
}

// A run of one rank, for its data and its held-out loss.
template <typename Read>
void with_job(const base::Recipe& recipe, const std::filesystem::path& cache, Read read) {
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    train::Start start;
    start.cache = cache;
    const std::unique_ptr<train::Job> job = train::build(world, recipe, start, {});
    read(*job);
  });
  if (ended.front()) std::rethrow_exception(ended.front());
}

// The training samples of each language; those that have letters of two are left out.
std::vector<std::vector<int64_t>> samples_by_language(const base::Recipe& recipe, const std::filesystem::path& cache) {
  std::vector<std::vector<int64_t>> ids(kLanguages);
  with_job(recipe, cache, [&](train::Job& job) {
    const data::SampleRange all = job.data.samples->training();
    for (int64_t id = all.first; id < all.first + all.count; ++id) {
      mesh::Batch batch;
      job.data.samples->fill(std::array{id}, batch);
      const at::Tensor tokens = batch.field("tokens").to(at::kLong).flatten();
      std::array<int64_t, kLanguages> counts{};
      for (int64_t i = 0; i < tokens.numel(); ++i)
        for (size_t l = 0; l < kLanguages; ++l) {
          const int64_t letter = tokens[i].item<int64_t>() - letter_of(l, 0);
          counts[l] += letter >= 0 && letter < static_cast<int64_t>(kLetters) ? 1 : 0;
        }
      for (size_t l = 0; l < kLanguages; ++l)
        if (counts[l] == tokens.numel() && std::count(counts.begin(), counts.end(), tokens.numel()) == 1) ids[l].push_back(id);
    }
  });
  return ids;
}

Tensors saved_model(const std::string& folder, base::Log& log) {
  const snapshot::Pretrained opened = snapshot::open_pretrained(folder, log);
  const auto decoder = model::make_decoder(opened.shape);
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(views);
  Tensors found;
  for (const mesh::NamedTensor& one : views) found[one.name] = one.tensor;
  return found;
}

class Languages {
 public:
  Languages(const ProofOptions& options, base::Log& log) : folder_(std::filesystem::path(options.scratch) / "languages"), log_(log) {
    base::make_folder(folder_);
    base::write_atomically(folder_ / "languages.txt", four_languages(options.seed, 240'000));
    ProofOptions here = options;
    here.data = (folder_ / "languages.txt").string();
    recipe_ = small_decoder(here, {"model.layers=2", "model.embed=32", "model.heads=2", "model.kv_heads=2", "model.mlp=64",
                                   fmt::format("data.length={}", kLength), "eval.fraction=0.1", "eval.samples=256", "train.steps=300",
                                   "train.global_batch=32", "optim.learning_rate=0.003", "optim.schedule=constant"});
    by_language_ = samples_by_language(recipe_, folder_ / "cache");
    for (const std::vector<int64_t>& ids : by_language_) CAIRN_CHECK(ids.size() > 1000, "a language of {} samples", ids.size());
  }

  struct Run {
    std::filesystem::path folder;
    std::vector<std::string> islands;       // by island: its run directory
    std::vector<base::MetricsRow> tracked;  // rows with merge_gap
  };
  // Islands that see one language each, by the trainer itself.
  Run train(const char* name, double neighbours, const char* final_model) const {
    const base::Recipe recipe = with(recipe_, {fmt::format("mesh.island={}", kIslands), "sync.island.kind=gossip", "sync.island.every=5",
                                               fmt::format("sync.island.neighbours={}", neighbours),
                                               fmt::format("sync.island.final={}", final_model), "sync.island.track_merge_every=6"});
    Run run{.folder = folder_ / name, .islands = {}, .tracked = {}};
    const base::Stop never;
    const auto ended = comm::LocalNetwork(kIslands).run([&](comm::World& world) {
      train::Start start;
      start.out = run.folder;
      start.cache = folder_ / "cache";
      const auto language = static_cast<size_t>(world.rank()) / (kIslands / kLanguages);
      train::run(world, recipe, start, data::Subset::of(by_language_[language]), never);
    });
    for (const std::exception_ptr& error : ended)
      if (error) std::rethrow_exception(error);
    for (int k = 0; k < kIslands; ++k) run.islands.push_back((k == 0 ? run.folder : run.folder / fmt::format("island-{}", k)).string());
    for (const base::MetricsRow& row : base::read_metrics(run.folder / "metrics.jsonl"))
      if (row.has("merge_gap")) run.tracked.push_back(row);
    return run;
  }

  // What `cairn snapshot merge` writes of the islands' snapshots.
  std::string merged(const Run& run) const {
    const std::string out = run.folder.string() + "-merged";
    snapshot::merge_folders(run.islands, {}, out, {}, base::real_disk(), log_);
    return out;
  }

  // The loss of a saved model on held-out samples of all languages.
  double loss_of(const std::string& saved) const {
    double loss = 0;
    with_job(with(recipe_, {"model.from=" + saved}), folder_ / "cache",
             [&](train::Job& job) { loss = train::evaluate_held_out(job).loss; });
    return loss;
  }
  double mean_loss_of(const Run& run) const {
    double sum = 0;
    for (const std::string& island : run.islands) sum += loss_of(island);
    return sum / kIslands;
  }

 private:
  std::filesystem::path folder_;
  base::Log& log_;
  base::Recipe recipe_;
  std::vector<std::vector<int64_t>> by_language_;
};

}  // namespace

void prove_merged_languages(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Languages languages(options, log);
  const Languages::Run little = languages.train("little", 0.2, "none"), ended = languages.train("ended", 0.2, "merge"),
                       silent = languages.train("silent", 0, "none");
  const std::string folder = languages.merged(little);
  const double local = languages.mean_loss_of(little), merged = languages.loss_of(folder),
               unmerged = languages.loss_of(languages.merged(silent));
  double least_gap = INFINITY;
  for (const base::MetricsRow& row : little.tracked) least_gap = std::min(least_gap, row.number("merge_gap"));
  const base::MetricsRow& last = little.tracked.back();
  log.info("four languages: loss of the islands {:.4f}, of `cairn snapshot merge` {:.4f}; without communication {:.4f}", local, merged,
           unmerged);
  findings.at_most(
      "language models on four languages, 8 islands: held-out loss of `cairn snapshot merge` of their snapshots, to their mean", local,
      merged, local);
  findings.at_least("likewise: least merge_gap of the run, tracked every 6 rounds (mergeable all along)", 0, least_gap, 0);
  findings.at_most("likewise: merge_loss of the run's last step, off the loss of what `cairn snapshot merge` writes by", merged,
                   std::abs(last.number("merge_loss") - merged), 1e-5);
  findings.at_most("likewise: merge_local_loss, off the mean loss of the snapshots by", local,
                   std::abs(last.number("merge_local_loss") - local), 1e-5);
  findings.at_most("a run that ends with final = merge: its model, off `cairn snapshot merge` of islands that do not merge by", 0,
                   largest_difference(saved_model(ended.islands.front(), log), saved_model(folder, log)), 1e-6);
  findings.at_least("no communication: held-out loss of the merged snapshots, to 0.2 neighbours", merged, unmerged, merged);
}

}  // namespace cairn::study
