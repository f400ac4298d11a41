// Concept-cluster pruning (DBP) and SemDeDup: 40 concepts in 32 dims, half of them dense and simple, half spread out and hard. What a
// classifier learns from a tenth of the points, chosen in several ways.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "evaluate/selection.h"
#include "proofs/concept_points.h"
#include "proofs/sampler_runs.h"
#include "proofs/selection_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr size_t kInnerSeeds = 8, kJudgedSeeds = 4;  // in the mean; by the worst

void write_table(const fs::path& file, const ConceptPoints::Points& points, const std::vector<int64_t>& rows) {
  std::string text;
  for (const int64_t row : rows) {
    for (const float x : points.x[static_cast<size_t>(row)]) text += fmt::format("{:.6g},", x);
    text += fmt::format("{}\n", points.labels[static_cast<size_t>(row)]);
  }
  base::write_atomically(file, text);
}

// Which points stay, by `cairn select concept` or at random.
std::vector<int64_t> choose(const data::RowSource& rows, int64_t keep, data::ConceptShares shares, data::ConceptPick within,
                            uint64_t seed) {
  evaluate::SelectionOptions options{
      .method = "concept", .keep = keep, .seed = seed, .clusters = kConcepts, .iterations = 20, .restarts = 10};
  options.concepts = {.temperature = 0.1, .balance = 0, .shares = shares, .within = within};
  return evaluate::select_documents(options, {.ids = numbers_up_to(rows.rows()), .vectors = &rows}, nullptr).kept;
}

// Accuracy on the balanced test set after training on these points: MLP 32-128-80, Adam 2e-3, 1,500 steps of 64.
double accuracy_on(const fs::path& folder, const std::string& name, const ConceptPoints& points, std::vector<int64_t> rows, uint64_t seed) {
  const fs::path data = folder / name;
  base::make_folder(data);
  // The classes of a table reach from 0 to the largest label of its training rows: a point in the middle of all stands for either end.
  std::set<int64_t> missing{0, 2 * kConcepts - 1};
  for (const int64_t row : rows) missing.erase(points.training.labels[static_cast<size_t>(row)]);
  ConceptPoints::Points training = points.training;
  for (const int64_t label : missing) {
    rows.push_back(static_cast<int64_t>(training.x.size()));
    training.x.emplace_back(kConceptDims, 0.0f);
    training.labels.push_back(label);
  }
  write_table(data / "train.csv", training, rows);
  write_table(data / "test.csv", points.test, numbers_up_to(kConceptTestPoints));
  const base::Recipe recipe = points_recipe(data, seed,
                                            {"train.steps=1500", "optim.kind=adamw", "optim.learning_rate=2e-3", "optim.weight_decay=0",
                                             "optim.schedule=constant", "optim.decay_decoupled=true"});
  return train_sampled(recipe, data / "run").last_accuracy();
}

struct Arm {
  std::string name;
  double keep = 0.1;
  data::ConceptShares shares = data::ConceptShares::density;
  data::ConceptPick within = data::ConceptPick::hard;
  bool random = false;
};

void accuracies(const ProofOptions& options, Findings& findings, base::Log& log) {
  using data::ConceptPick, data::ConceptShares;
  const std::vector<Arm> arms{{.name = "random", .random = true},
                              {.name = "uniform-random", .shares = ConceptShares::uniform, .within = ConceptPick::random},
                              {.name = "dbp-random", .within = ConceptPick::random},
                              {.name = "uniform-hard", .shares = ConceptShares::uniform},
                              {.name = "dbp-hard"},
                              {.name = "ssp-hard", .shares = ConceptShares::global},
                              {.name = "random-60", .keep = 0.6, .random = true},
                              {.name = "dbp-hard-60", .keep = 0.6}};
  std::map<std::string, std::vector<double>> found;
  for (const Arm& arm : arms) found[arm.name].resize(kInnerSeeds);
  std::vector<std::unique_ptr<ConceptPoints>> points;
  std::vector<std::unique_ptr<data::RowSource>> vectors;
  for (uint64_t s = 0; s < kInnerSeeds; ++s) {
    points.push_back(std::make_unique<ConceptPoints>(options.seed * 100 + s));
    vectors.push_back(data::rows_in_memory(points.back()->vectors()));
  }
  in_parallel(static_cast<int64_t>(kInnerSeeds * arms.size()), [&](int64_t job) {
    const auto s = static_cast<size_t>(job) / arms.size();
    const Arm& arm = arms[static_cast<size_t>(job) % arms.size()];
    const uint64_t seed = options.seed * 100 + s;
    const auto keep = static_cast<int64_t>(arm.keep * kConceptPoints);
    const std::vector<int64_t> rows = arm.random ? data::pick_random(numbers_up_to(kConceptPoints), keep, base::Random(seed))
                                                 : choose(*vectors[s], keep, arm.shares, arm.within, seed);
    found[arm.name][s] = accuracy_on(fs::path(options.scratch) / fmt::format("seed-{}", s), arm.name, *points[s], rows, seed);
  });
  for (const auto& [name, values] : found) log.info("{}: {:.3f}", name, fmt::join(values, " "));
  const auto least = [&](const std::string& better, const std::string& than) {
    double worst = 1;
    for (size_t s = 0; s < kJudgedSeeds; ++s) worst = std::min(worst, found[better][s] - found[than][s]);
    return worst;
  };
  const auto mean = [&](const std::string& name) {
    return std::accumulate(found[name].begin(), found[name].end(), 0.0) / static_cast<double>(kInnerSeeds);
  };
  findings.at_least("a tenth kept: accuracy of DBP with random picks above random, on the worst of 4 seeds", mean("random"),
                    least("dbp-random", "random"), 0.03);
  findings.at_least("likewise above equal quotas with random picks, in the mean of 8 seeds", mean("uniform-random"),
                    mean("dbp-random") - mean("uniform-random"), 0.02);
  log.info("hard picks, DBP above equal quotas: {:.3f} on the worst of 4 seeds", least("dbp-hard", "uniform-hard"));
  findings.at_least("likewise with hard picks above equal quotas with hard picks, in the mean of 8 seeds", mean("uniform-hard"),
                    mean("dbp-hard") - mean("uniform-hard"), 0.03);
  findings.at_least("likewise with hard picks above one order over all clusters (SSP), on the worst of 4 seeds", mean("ssp-hard"),
                    least("dbp-hard", "ssp-hard"), 0.2);
  findings.at_least("60 % kept: DBP with hard picks to random, on the worst of 4 seeds", mean("random-60"),
                    least("dbp-hard-60", "random-60"), -0.02);
}

// `cairn select` as 1, 2 and 4 processes.
void processes_agree(const ProofOptions& options, Findings& findings) {
  const fs::path folder = fs::path(options.scratch) / "ranks";
  base::make_folder(folder);
  write_texts(folder / "pool.jsonl", built_in_stories(600, options.seed + 11, 200));
  train_model(options, folder, "base",
              {"model.layers=2", "model.embed=32", "model.heads=2", "model.kv_heads=2", "model.mlp=64", "data.tokenizer=bytes",
               "data.length=64", "train.steps=20", "train.global_batch=8", "eval.fraction=0", "data.path=pool.jsonl"});
  std::set<uint64_t> deduplicated, pruned;
  for (const std::string processes : {"1", "2", "4"}) {
    deduplicated.insert(run_selection(options, folder,
                                      {"dedup", "--data", "pool.jsonl", "--model", "base", "--clusters", "4", "--keep", "500", "--nproc",
                                       processes, "--index", "index-" + processes},
                                      "deduplicated")
                            .hash());
    pruned.insert(run_selection(options, folder,
                                {"concept", "--data", "pool.jsonl", "--model", "base", "--from", "deduplicated", "--clusters", "25",
                                 "--keep", "200", "--nproc", processes, "--index", "index-" + processes},
                                "pruned-" + processes)
                      .hash());
    fs::remove(folder / "deduplicated");
  }
  findings.at_most("600 stories, 1, 2 and 4 processes: different selections by dedup", 1, static_cast<double>(deduplicated.size()), 1);
  findings.at_most("likewise by concept, of what dedup left", 1, static_cast<double>(pruned.size()), 1);
}

// Texts with planted near-duplicates: document count + i is nearly document i, for the first `planted` ones.
struct PlantedTexts {
  int64_t count = 0, planted = 0;

  PlantedTexts(const fs::path& file, const std::vector<std::string>& texts, const base::Random& random)
      : count(static_cast<int64_t>(texts.size())), planted(count * 3 / 10) {
    std::vector<std::string> pool = texts;
    for (int64_t i = 0; i < planted; ++i) pool.push_back(nearly(texts[static_cast<size_t>(i)], random.for_index(static_cast<uint64_t>(i))));
    write_texts(file, pool);
  }

  struct Shares {
    double dropped = 0;  // of the pairs, those of which just one is left
    double lost = 0;     // texts of which nothing is left, neither they nor a copy, to those without one
  };
  Shares of(const data::DocumentSubset& kept) const {
    const std::set<int64_t> stays(kept.ids.begin(), kept.ids.end());
    Shares shares;
    for (int64_t i = 0; i < count; ++i) {
      const int left = stays.contains(i) + (i < planted && stays.contains(count + i));
      if (i < planted && left == 1) shares.dropped += 1 / static_cast<double>(planted);
      if (left == 0) shares.lost += 1 / static_cast<double>(count - planted);
    }
    return shares;
  }

 private:
  // The text with another word after one in forty. Texts without blanks have words of about 24 bytes.
  static std::string nearly(const std::string& text, const base::Random& random) {
    constexpr int64_t kWordMost = 24;
    std::string copy;
    uint64_t words = 0;
    int64_t bytes = 0;  // of the word so far
    for (size_t i = 0; i < text.size(); ++i) {
      copy += text[i];
      const bool at_end = i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xc0) != 0x80;
      if (text[i] != ' ' && text[i] != '\n' && !(++bytes >= kWordMost && at_end)) continue;
      bytes = 0;
      if (random.below(words++, 40) == 0) copy += "very ";
    }
    return copy + " ";
  }
};

// The user's texts with planted near-duplicates, through the program. Half of them tell how like each other near-duplicates are; the other
// half is measured at that threshold.
void own_texts(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::string claim = "--data: planted near-duplicates of its texts that were dropped, as many kept as there are texts";
  if (options.data.empty()) {
    findings.skip(claim, "give --data FILE");
    return;
  }
  const fs::path folder = fs::path(options.scratch) / "own";
  base::make_folder(folder);
  const std::vector<std::string> texts = paragraphs_of(options.data, 800, 200, 600);
  std::vector<std::string> first, second;
  for (size_t i = 0; i < texts.size(); ++i) (i % 2 == 0 ? first : second).push_back(texts[i]);
  const base::Random random = base::Random(options.seed).for_purpose("duplicate");
  const PlantedTexts known(folder / "known.jsonl", first, random.for_index(0)), asked(folder / "asked.jsonl", second, random.for_index(1));
  write_texts(folder / "texts.jsonl", texts);
  train_model(
      options, folder, "base",
      {"model.layers=2", "model.embed=128", "model.heads=4", "model.kv_heads=4", "model.mlp=344", "data.vocab=1024", "data.length=128",
       "train.steps=300", "train.global_batch=16", "optim.learning_rate=3e-3", "eval.fraction=0", "data.path=texts.jsonl"});
  const auto dedup = [&](const std::string& pool, const std::vector<std::string>& more, const std::string& out) {
    std::vector<std::string> arguments{"dedup",      "--data", pool + ".jsonl", "--model",     "base", "--pooling", "mean",
                                       "--clusters", "1",      "--index",       out + "-index"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_selection(options, folder, arguments, out);
  };
  const data::DocumentSubset as_many = dedup("known", {"--keep", std::to_string(known.count)}, "as-many");
  const std::string eps = base::compact(as_many.how["eps"]);
  std::set<uint64_t> hashes;
  data::DocumentSubset unlike;
  for (const char* ranks : {"1", "2", "4"}) {
    unlike = dedup("asked", {"--eps", eps, "--nproc", ranks}, std::string("unlike-") + ranks);
    hashes.insert(unlike.hash());
  }
  const PlantedTexts::Shares by_count = known.of(as_many), by_eps = asked.of(unlike);
  log.info("{} texts, {} near-duplicates; of the first half {:.3f} dropped and {:.3f} lost; of the second, at eps {}, {:.3f} and {:.3f}",
           texts.size(), known.planted + asked.planted, by_count.dropped, by_count.lost, eps, by_eps.dropped, by_eps.lost);
  findings.at_least(claim, 0, by_count.dropped, 0.95);
  findings.at_most("--data: likewise, share of the texts of which nothing is left", 0, by_count.lost, 0.02);
  findings.at_least("--data: other texts of it at the eps found there: planted near-duplicates that were dropped", 0, by_eps.dropped, 0.95);
  findings.at_most("--data: likewise, share of the texts of which nothing is left", 0, by_eps.lost, 0.02);
  findings.at_most("--data: 1, 2 and 4 processes: different selections", 1, static_cast<double>(hashes.size()), 1);
}

}  // namespace

void prove_concept_pruning(const ProofOptions& options, Findings& findings, base::Log& log) {
  own_texts(options, findings, log);  // first: it may refuse --data
  prove_concept_quotas(options, findings);
  accuracies(options, findings, log);
  processes_agree(options, findings);
  for (const char* claim : {"H200: 10 million vectors of 256, 500 clusters: 20 iterations in a minute, read at 1.8 GB/s",
                            "H200: the same in clusters of at most 10,000: near-duplicates found in a minute"})
    findings.skip(claim, "this proof has no part for a GPU");
}

}  // namespace cairn::study
