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

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "data/search/k_means.h"
#include "data/selection/duplicates.h"
#include "data/selection/quota.h"
#include "evaluate/selection.h"
#include "kernels/aten.h"
#include "proofs/sampler_runs.h"
#include "proofs/selection_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kConcepts = 40, kDims = 32, kPoints = 12'000, kTestPoints = 4000, kTenth = 1200;
constexpr int64_t kInnerSeeds = 4;

// Points of concepts with Zipf-like sizes. Even concepts are dense and have one class; odd ones are spread out and have two, on the two
// sides of a hyperplane through the centre.
class ConceptPoints {
 public:
  explicit ConceptPoints(uint64_t seed) : random_(base::Random(seed).for_purpose("concepts")) {
    for (int64_t c = 0; c < kConcepts; ++c) {
      centres_.push_back(unit(random_.for_name("centre").for_index(static_cast<uint64_t>(c))));
      planes_.push_back(unit(random_.for_name("plane").for_index(static_cast<uint64_t>(c))));
    }
    std::vector<double> weights;
    std::vector<int64_t> room(kConcepts, kPoints);
    for (int64_t c = 0; c < kConcepts; ++c) weights.push_back(1.0 / (1.0 + static_cast<double>(order_of(c))));
    const std::vector<int64_t> sizes = data::capped_shares(weights, room, kPoints, random_);
    std::vector<int64_t> tests(kConcepts, kTestPoints / kConcepts);
    training = draw(sizes, "training");
    test = draw(tests, "test");
  }

  struct Points {
    std::vector<std::vector<float>> x;
    std::vector<int64_t> labels, concepts;
  };
  Points training, test;

  at::Tensor vectors() const {
    const at::Tensor rows = at::empty({static_cast<int64_t>(training.x.size()), kDims});
    for (size_t i = 0; i < training.x.size(); ++i)
      std::ranges::copy(training.x[i], rows.mutable_data_ptr<float>() + static_cast<int64_t>(i) * kDims);
    return rows / rows.norm(2, 1, true);
  }

 private:
  // The rank of a concept by size: dense and spread out ones in a random order.
  int64_t order_of(int64_t concept_number) const {
    std::vector<std::pair<double, int64_t>> keyed;
    for (int64_t c = 0; c < kConcepts; ++c) keyed.emplace_back(random_.for_name("order").uniform(static_cast<uint64_t>(c)), c);
    std::ranges::sort(keyed);
    for (size_t i = 0; i < keyed.size(); ++i)
      if (keyed[i].second == concept_number) return static_cast<int64_t>(i);
    return 0;
  }

  static std::vector<float> unit(const base::Random& random) {
    std::vector<float> x(kDims);
    random.fill_normal(x);
    float square = 0;
    for (const float one : x) square += one * one;
    for (float& one : x) one /= std::sqrt(square);
    return x;
  }

  Points draw(const std::vector<int64_t>& sizes, const std::string& name) const {
    Points points;
    for (int64_t c = 0; c < kConcepts; ++c) {
      const auto at = static_cast<size_t>(c);
      const bool spread = c % 2 == 1;
      for (int64_t i = 0; i < sizes[at]; ++i) {
        const base::Random one = random_.for_name(name).for_index(static_cast<uint64_t>(c)).for_index(static_cast<uint64_t>(i));
        std::vector<float> x(kDims);
        one.fill_normal(x);
        float side = 0;
        for (size_t d = 0; d < kDims; ++d) {
          x[d] *= spread ? 0.16f : 0.04f;
          side += x[d] * planes_[at][d];
          x[d] += centres_[at][d];
        }
        points.x.push_back(x);
        points.labels.push_back(2 * c + (spread && side > 0 ? 1 : 0));
        points.concepts.push_back(c);
      }
    }
    return points;
  }

  base::Random random_;
  std::vector<std::vector<float>> centres_, planes_;
};

void write_table(const fs::path& file, const ConceptPoints::Points& points, const std::vector<int64_t>& rows) {
  std::string text;
  for (const int64_t row : rows) {
    for (const float x : points.x[static_cast<size_t>(row)]) text += fmt::format("{:.6g},", x);
    text += fmt::format("{}\n", points.labels[static_cast<size_t>(row)]);
  }
  base::write_atomically(file, text);
}

std::vector<int64_t> numbers_to(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Which points stay, by `cairn select concept` or at random.
std::vector<int64_t> choose(const data::RowSource& rows, int64_t keep, data::ConceptShares shares, data::ConceptPick within,
                            uint64_t seed) {
  evaluate::SelectionOptions options{.method = "concept", .keep = keep, .seed = seed, .clusters = kConcepts, .iterations = 20};
  options.concepts = {.temperature = 0.1, .balance = 0, .shares = shares, .within = within};
  return evaluate::select_documents(options, {.ids = numbers_to(rows.rows()), .vectors = &rows}, nullptr).kept;
}

// Accuracy on the balanced test set after training on these points: MLP 32-128-80, Adam 2e-3, 1,500 steps of 64.
double accuracy_on(const fs::path& folder, const std::string& name, const ConceptPoints& points, std::vector<int64_t> rows, uint64_t seed) {
  const fs::path data = folder / name;
  base::make_folder(data);
  // The classes of a table are those of its training rows, so each class is among them once.
  std::set<int64_t> seen;
  for (const int64_t row : rows) seen.insert(points.training.labels[static_cast<size_t>(row)]);
  for (int64_t row = 0; row < kPoints; ++row)
    if (seen.insert(points.training.labels[static_cast<size_t>(row)]).second) rows.push_back(row);
  write_table(data / "train.csv", points.training, rows);
  write_table(data / "test.csv", points.test, numbers_to(kTestPoints));
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
  in_parallel(kInnerSeeds * static_cast<int64_t>(arms.size()), [&](int64_t job) {
    const auto s = static_cast<size_t>(job) / arms.size();
    const Arm& arm = arms[static_cast<size_t>(job) % arms.size()];
    const uint64_t seed = options.seed * 100 + s;
    const auto keep = static_cast<int64_t>(arm.keep * kPoints);
    const std::vector<int64_t> rows = arm.random ? data::pick_random(numbers_to(kPoints), keep, base::Random(seed))
                                                 : choose(*vectors[s], keep, arm.shares, arm.within, seed);
    found[arm.name][s] = accuracy_on(fs::path(options.scratch) / fmt::format("seed-{}", s), arm.name, *points[s], rows, seed);
  });
  for (const auto& [name, values] : found) log.info("{}: {:.3f} {:.3f} {:.3f} {:.3f}", name, values[0], values[1], values[2], values[3]);
  const auto least = [&](const std::string& better, const std::string& than) {
    double worst = 1;
    for (size_t s = 0; s < kInnerSeeds; ++s) worst = std::min(worst, found[better][s] - found[than][s]);
    return worst;
  };
  const auto mean = [&](const std::string& name) { return std::accumulate(found[name].begin(), found[name].end(), 0.0) / kInnerSeeds; };
  findings.at_least("a tenth kept, 4 seeds: accuracy of DBP with random picks above random, on the worst seed", mean("random"),
                    least("dbp-random", "random"), 0.03);
  findings.at_least("likewise above equal quotas with random picks, in the mean", mean("uniform-random"),
                    mean("dbp-random") - mean("uniform-random"), 0.02);
  findings.at_least("likewise with hard picks above equal quotas with hard picks, on the worst seed", mean("uniform-hard"),
                    least("dbp-hard", "uniform-hard"), 0.03);
  findings.at_least("likewise with hard picks above one order over all clusters (SSP), on the worst seed", mean("ssp-hard"),
                    least("dbp-hard", "ssp-hard"), 0.2);
  findings.at_least("60 % kept: DBP with hard picks to random, on the worst seed", mean("random-60"), least("dbp-hard-60", "random-60"),
                    -0.02);
}

// 30 % near-copies of points with noise of 1e-3.
void planted_copies(const ProofOptions& options, Findings& findings) {
  const ConceptPoints points(options.seed);
  const at::Tensor originals = points.vectors();
  const int64_t copies = kPoints * 3 / 10;
  std::vector<int64_t> which = data::pick_random(numbers_to(kPoints), copies, base::Random(options.seed).for_purpose("copies"));
  at::Tensor near = originals.index_select(0, at::tensor(which, at::kLong)).clone();
  const at::Tensor noise = at::empty_like(near);
  base::Random(options.seed).for_purpose("noise").fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
  near += 1e-3 / std::sqrt(static_cast<double>(kDims)) * noise;
  const at::Tensor all = at::empty({kPoints + copies, kDims});
  all.narrow(0, 0, kPoints).copy_(originals);
  all.narrow(0, kPoints, copies).copy_(near / near.norm(2, 1, true));
  const auto rows = data::rows_in_memory(all);
  // Copies are at 1 - 5e-7; the nearest different points of the dense concepts at about 1 - 1e-2.
  const std::vector<int64_t> kept = evaluate::select_documents({.method = "dedup", .seed = options.seed, .clusters = 20, .eps = 1e-5},
                                                               {.ids = numbers_to(rows->rows()), .vectors = rows.get()}, nullptr)
                                        .kept;
  const std::set<int64_t> stays(kept.begin(), kept.end()), copied(which.begin(), which.end());
  double removed = 0, lost = 0;
  for (size_t i = 0; i < which.size(); ++i) removed += stays.contains(which[i]) + stays.contains(kPoints + static_cast<int64_t>(i)) <= 1;
  for (int64_t i = 0; i < kPoints; ++i) lost += !copied.contains(i) && !stays.contains(i);
  findings.at_least("30 % planted near-copies: share of the pairs of which one was removed", 0, removed / static_cast<double>(copies),
                    0.99);
  findings.at_most("likewise: share of the other points that were removed", 0, lost / static_cast<double>(kPoints - copies), 0.01);
}

// A cluster inflated 10 times by copies gets its old quota back.
void inflated_cluster(const ProofOptions& options, Findings& findings) {
  const ConceptPoints points(options.seed);
  const at::Tensor originals = points.vectors();
  constexpr int64_t kInflated = 1;
  std::vector<int64_t> members, concepts = points.training.concepts;
  for (int64_t i = 0; i < kPoints; ++i)
    if (concepts[static_cast<size_t>(i)] == kInflated) members.push_back(i);
  const auto count = static_cast<int64_t>(members.size());
  at::Tensor all = at::empty({kPoints + 9 * count, kDims});
  all.narrow(0, 0, kPoints).copy_(originals);
  const at::Tensor some = originals.index_select(0, at::tensor(members, at::kLong));
  for (int64_t copy = 0; copy < 9; ++copy) {
    at::Tensor noise = at::empty_like(some);
    base::Random(options.seed)
        .for_purpose("inflate")
        .for_index(static_cast<uint64_t>(copy))
        .fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
    const at::Tensor near = some + 1e-4 * noise;
    all.narrow(0, kPoints + copy * count, count).copy_(near / near.norm(2, 1, true));
    concepts.insert(concepts.end(), members.size(), kInflated);
  }
  // By the true concepts as clusters, so that only the quota is compared.
  const auto quota_of = [&](const std::vector<int64_t>& rows) {
    std::vector<int32_t> labels;
    for (const int64_t row : rows) labels.push_back(static_cast<int32_t>(concepts[static_cast<size_t>(row)]));
    const at::Tensor chosen = all.index_select(0, at::tensor(rows, at::kLong));
    at::Tensor centroids = at::zeros({kConcepts, kDims});
    for (size_t i = 0; i < labels.size(); ++i) centroids[labels[i]] += chosen[static_cast<int64_t>(i)];
    centroids = centroids / centroids.norm(2, 1, true);
    std::vector<float> closeness;
    for (size_t i = 0; i < labels.size(); ++i)
      closeness.push_back(data::scalar_product(chosen.const_data_ptr<float>() + static_cast<int64_t>(i) * kDims,
                                               centroids.const_data_ptr<float>() + labels[i] * kDims, kDims));
    return static_cast<double>(
        data::prune_concepts(rows, labels, closeness, centroids, {.keep = kTenth, .balance = 0}).clusters[kInflated].quota);
  };
  const std::vector<int64_t> everything = numbers_to(all.size(0));
  const auto rows = data::rows_in_memory(all);
  const std::vector<int64_t> deduplicated =
      evaluate::select_documents({.method = "dedup", .seed = options.seed, .clusters = 20, .eps = 1e-5},
                                 {.ids = everything, .vectors = rows.get()}, nullptr)
          .kept;
  const double before = quota_of(numbers_to(kPoints)), after = quota_of(deduplicated);
  findings.at_most("a cluster inflated 10 times by copies: its quota after dedup, off that without copies by", before,
                   std::abs(after - before) / before, 0.2);
}

// The exact projection against bisection to the last bit.
void quotas(const ProofOptions& options, Findings& findings) {
  double worst = 0, wrong = 0;
  for (uint64_t instance = 0; instance < 200; ++instance) {
    const base::Random random = base::Random(options.seed).for_purpose("quota").for_index(instance);
    const size_t k = 1 + random.below(0, 50);
    std::vector<double> wanted;
    std::vector<int64_t> lower, upper;
    int64_t low_sum = 0, high_sum = 0;
    for (size_t j = 0; j < k; ++j) {
      wanted.push_back(random.for_index(j).uniform(0) * 500);
      upper.push_back(static_cast<int64_t>(random.for_index(j).below(1, 400)));
      lower.push_back(std::min<int64_t>(upper.back(), static_cast<int64_t>(random.for_index(j).below(2, 50))));
      low_sum += lower.back();
      high_sum += upper.back();
    }
    const int64_t total = low_sum + static_cast<int64_t>(random.below(1, static_cast<uint64_t>(high_sum - low_sum) + 1));
    const data::Projection found = data::project_onto_total(wanted, lower, upper, total);
    double low = -1e6, high = 1e6;
    for (int step = 0; step < 300; ++step) {
      const double lambda = (low + high) / 2;
      double sum = 0;
      for (size_t j = 0; j < k; ++j) sum += std::clamp(wanted[j] + lambda, static_cast<double>(lower[j]), static_cast<double>(upper[j]));
      (sum < static_cast<double>(total) ? low : high) = lambda;
    }
    for (size_t j = 0; j < k; ++j)
      worst = std::max(worst,
                       std::abs(found.x[j] - std::clamp(wanted[j] + high, static_cast<double>(lower[j]), static_cast<double>(upper[j]))));
    const std::vector<int64_t> counts = data::round_to_total(found.x, upper, total);
    wrong += std::accumulate(counts.begin(), counts.end(), int64_t{0}) != total;
    for (size_t j = 0; j < k; ++j) wrong += counts[j] < lower[j] || counts[j] > upper[j];
  }
  findings.at_most("200 random quotas: largest distance to bisection, of one cluster", 0, worst, 1e-7);
  findings.at_most("likewise: sums and bounds that do not hold", 0, wrong, 0);
}

// The user's texts with planted near-duplicates, through the program.
void own_texts(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::string claim = "--data: planted near-duplicates of its texts that were dropped";
  if (options.data.empty()) {
    findings.skip(claim, "give --data FILE");
    return;
  }
  const fs::path folder = fs::path(options.scratch) / "own";
  base::make_folder(folder);
  const std::vector<std::string> texts = paragraphs_of(options.data, 800, 200, 600);
  const auto count = static_cast<int64_t>(texts.size()), planted = count * 3 / 10;
  std::vector<std::string> pool = texts;
  for (int64_t i = 0; i < planted; ++i) {  // one word in forty is written twice
    const base::Random random = base::Random(options.seed).for_purpose("duplicate").for_index(static_cast<uint64_t>(i));
    std::string copy;
    uint64_t word = 0;
    for (const char c : texts[static_cast<size_t>(i)]) {
      copy += c;
      if (c != ' ' && c != '\n') continue;
      if (random.below(word++, 40) == 0) copy += "very ";
    }
    pool.push_back(copy + " ");
  }
  write_texts(folder / "pool.jsonl", pool);
  train_model(
      options, folder, "base",
      {"model.layers=2", "model.embed=64", "model.heads=4", "model.kv_heads=4", "model.mlp=172", "data.vocab=1024", "data.length=128",
       "train.steps=150", "train.global_batch=16", "optim.learning_rate=3e-3", "eval.fraction=0", "data.path=pool.jsonl"});
  std::set<uint64_t> hashes;
  data::DocumentSubset kept;
  for (const char* ranks : {"1", "2", "4"}) {
    kept = run_selection(options, folder,
                         {"dedup", "--data", "pool.jsonl", "--model", "base", "--pooling", "mean", "--clusters", "1", "--keep",
                          std::to_string(count), "--nproc", ranks},
                         std::string("kept-") + ranks);
    hashes.insert(kept.hash());
  }
  const std::set<int64_t> stays(kept.ids.begin(), kept.ids.end());
  double dropped = 0, lost = 0;
  for (int64_t i = 0; i < planted; ++i) dropped += stays.contains(i) + stays.contains(count + i) == 1;
  for (int64_t i = planted; i < count; ++i) lost += !stays.contains(i);
  log.info("{} texts, {} near-duplicates, eps {}", count, planted, base::compact(kept.how["eps"]));
  findings.at_least(claim, 0, dropped / static_cast<double>(planted), 0.95);
  findings.at_most("--data: share of the other texts that were dropped", 0, lost / static_cast<double>(count - planted), 0.02);
  findings.at_most("--data: 1, 2 and 4 processes: different selections", 1, static_cast<double>(hashes.size()), 1);
}

}  // namespace

void prove_concept_pruning(const ProofOptions& options, Findings& findings, base::Log& log) {
  quotas(options, findings);
  planted_copies(options, findings);
  inflated_cluster(options, findings);
  accuracies(options, findings, log);
  own_texts(options, findings, log);
}

}  // namespace cairn::study
