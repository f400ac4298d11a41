// TAS-Balanced: dense retrieval with batches of topically related queries, balanced margins and a teacher for all passages of a batch.
// Everything is trained by train::run; the baseline is the same recipe with data.sampler = shuffled.
#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <map>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "data/open.h"
#include "data/search/k_means.h"
#include "evaluate/retrieval.h"
#include "kernels/aten.h"
#include "model/losses/retrieval.h"
#include "proofs/layout_run.h"
#include "proofs/topic_set.h"
#include "snapshot/folder.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/layout_trace.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr int kInnerSeeds = 3;
constexpr int64_t kSteps = 600, kBaselineSteps = 200, kClusters = 50, kBatch = 32;

base::Recipe retrieval_recipe(const TopicSet& set, uint64_t seed, int64_t steps, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 1, embed = 32, heads = 2, kv_heads = 2, mlp = 32}
    data = {kind = "retrieval"}
    retrieval = {query_tokens = 6, passage_tokens = 24, pooling = "mean"}
    optim = {kind = "adamw", learning_rate = 5e-3, weight_decay = 0.0, warmup_steps = 0, schedule = "constant", max_grad_norm = 0.0}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, fraction = 0.0}
    snapshot = {every = 0}
  )",
                                            "retrieval.toml");
  recipe.set("data.path=" + set.folder());
  recipe.set("data.tokenizer_file=" + set.tokenizer());
  recipe.set(fmt::format("train.steps={}", steps));
  recipe.set(fmt::format("train.global_batch={}", kBatch));
  recipe.set(fmt::format("train.seed={}", seed));
  for (const std::string& one : sets) recipe.set(one);
  return recipe;
}

struct Outcome {
  evaluate::RetrievalFigures figures;
  double teacher_score = 0;  // mean over the run: of queries and passages of other samples of the batch
  std::vector<double> losses;
  std::vector<std::string> samples;
};

evaluate::TextEncoder encoder_of(train::Job& job) { return {*job.engine.model, job.engine.store->weights(), job.engine.buffers, 0}; }

evaluate::RetrievalFigures figures_of(train::Job& job, const TopicSet& set) {
  const data::TextTable queries = data::read_queries(set.folder()), collection = data::read_collection(set.folder());
  const data::RetrievalTexts& texts = data::retrieval_samples(job.data.samples.get())->texts();
  return evaluate::evaluate_retrieval(encoder_of(job), texts.query_tokens, texts.passage_tokens,
                                      data::read_judgements(set.folder(), queries, collection),
                                      {.pooling = data::RetrievalPooling::mean, .results = 100, .timed = 0})
      .figures;
}

void rethrow(const std::vector<std::exception_ptr>& ended) {
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

// One run; `at_end` sees it before it is gone.
Outcome train_on_topics(const base::Recipe& recipe, const TopicSet& set, const std::filesystem::path& out, int ranks = 1,
                        const std::function<void(train::Job&)>& at_end = {}, bool resume = false) {
  Outcome outcome;
  rethrow(comm::LocalNetwork(ranks).run([&](comm::World& world) {
    train::Start start;
    start.out = out;
    start.resume = resume;
    start.passage_scores = set.teacher();
    train::run(world, recipe, start, {}, base::Stop(), {.at_end = world.rank() == 0 ? at_end : nullptr});
  }));
  const std::vector<base::MetricsRow> rows = base::read_metrics(out / "metrics.jsonl");
  for (const base::MetricsRow& row : rows) {
    outcome.losses.push_back(row.number("loss"));
    if (row.has("teacher_score")) outcome.teacher_score += row.number("teacher_score") / static_cast<double>(rows.size());
    for (const auto& [name, value] : row.values)
      if (name == "samples") outcome.samples.push_back(std::get<std::string>(value));
  }
  return outcome;
}

// The same model after a few steps with random batches, and clusters of the training queries by its vectors.
std::string make_clusters(const TopicSet& set, uint64_t seed, const std::filesystem::path& out) {
  const std::filesystem::path file = std::filesystem::path(set.folder()) / "clusters.tsv";
  train_on_topics(retrieval_recipe(set, seed, kBaselineSteps, {"retrieval.in_batch_weight=0"}), set, out, 1, [&](train::Job& job) {
    const data::RetrievalTexts& texts = data::retrieval_samples(job.data.samples.get())->texts();
    std::vector<int64_t> queries(static_cast<size_t>(set.training_queries()));
    std::iota(queries.begin(), queries.end(), int64_t{0});
    const at::Tensor vectors = evaluate::text_vectors(encoder_of(job), texts.query_tokens, queries, data::RetrievalPooling::mean, 256);
    const data::KMeans found = data::k_means(*data::rows_in_memory(vectors), {.clusters = kClusters, .seed = seed});
    base::write_atomically(file, data::format_clusters(queries, found.labels, texts.queries));
  });
  return file.string();
}

// The four cells: batches random or topical, with and without the loss over the batch.
struct Cells {
  Outcome random, random_alone, topical, topical_alone;
};

Cells run_cells(const TopicSet& set, const std::string& clusters, uint64_t seed, const std::filesystem::path& out) {
  const auto cell = [&](const char* name, bool topical, bool in_batch) {
    Assignments sets;
    if (topical) sets = {"data.sampler=tas", "sampler.clusters=" + clusters};
    if (!in_batch) sets.push_back("retrieval.in_batch_weight=0");
    evaluate::RetrievalFigures figures;
    Outcome found = train_on_topics(retrieval_recipe(set, seed, kSteps, sets), set, out / name, 1,
                                    [&](train::Job& job) { figures = figures_of(job, set); });
    found.figures = figures;
    return found;
  };
  Cells cells;
  // Two at a time: each is one rank with one thread.
  std::thread beside([&] {
    cells.random = cell("random", false, true);
    cells.random_alone = cell("random-alone", false, false);
  });
  cells.topical = cell("topical", true, true);
  cells.topical_alone = cell("topical-alone", true, false);
  beside.join();
  return cells;
}

// 1, 2 and the first statistic of 3.
void learning(const ProofOptions& options, Findings& findings, base::Log& log) {
  std::array<double, 4> mean{};
  for (int inner = 0; inner < kInnerSeeds; ++inner) {
    const uint64_t seed = options.seed * 100 + static_cast<uint64_t>(inner);
    const std::filesystem::path folder = std::filesystem::path(options.scratch) / fmt::format("seed-{}", inner);
    const TopicSet set(folder / "set", seed);
    const std::string clusters = make_clusters(set, seed, folder / "baseline");
    const Cells cells = run_cells(set, clusters, seed, folder);
    const std::array<const Outcome*, 4> all{&cells.random_alone, &cells.random, &cells.topical_alone, &cells.topical};
    for (size_t i = 0; i < all.size(); ++i) mean[i] += all[i]->figures.mrr_10 / kInnerSeeds;
    log.info(
        "inner seed {}: MRR@10 random {:.3f}, with in-batch loss {:.3f}, topical {:.3f}, with in-batch loss {:.3f}; recall@10 {:.3f} "
        "to {:.3f}; teacher's scores in the batch {:.3f} to {:.3f}",
        inner, cells.random_alone.figures.mrr_10, cells.random.figures.mrr_10, cells.topical_alone.figures.mrr_10,
        cells.topical.figures.mrr_10, cells.random.figures.recall_10, cells.topical.figures.recall_10, cells.random.teacher_score,
        cells.topical.teacher_score);
    findings.at_least(fmt::format("1. inner seed {}: MRR@10 with topical batches - with random ones, both with the in-batch loss", inner),
                      cells.random.figures.mrr_10, cells.topical.figures.mrr_10 - cells.random.figures.mrr_10, 0.05);
    findings.at_least(fmt::format("1. inner seed {}: the same for recall@10", inner), cells.random.figures.recall_10,
                      cells.topical.figures.recall_10 - cells.random.figures.recall_10, 0.08);
    findings.at_least(fmt::format("3. inner seed {}: the teacher's mean score of other samples of the batch, topical / random", inner),
                      cells.random.teacher_score, cells.topical.teacher_score / cells.random.teacher_score, 10);
  }
  log.info("MRR@10, mean of {} inner seeds: random {:.4f}, with in-batch loss {:.4f}, topical {:.4f}, with in-batch loss {:.4f}",
           kInnerSeeds, mean[0], mean[1], mean[2], mean[3]);
  findings.at_least("2. MRR@10 of topical batches with the in-batch loss - the best of the three other cells, mean of inner seeds",
                    std::max({mean[0], mean[1], mean[2]}), mean[3] - std::max({mean[0], mean[1], mean[2]}), 0.005);
}

}  // namespace

void prove_tas_balanced(const ProofOptions& options, Findings& findings, base::Log& log) { learning(options, findings, log); }

}  // namespace cairn::study
