// Diversify and Conquer: samples chosen in rounds, where clusters that teach nothing lose their share. Topics of which some have random
// labels, against a random choice and clusters alone; quotas, draws, ranks and late answers.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/selection/quota.h"
#include "data/selection/simple_picks.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "proofs/sampler_runs.h"
#include "proofs/study_tables.h"
#include "study/claims.h"
#include "study/iterate.h"
#include "study/iterate_select.h"
#include "study/sample_scores.h"
#include "train/train.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTopicSeeds = 8, kTopics = 30, kTopicDims = 24, kTopicClasses = 8, kTopicHidden = 32;
constexpr int64_t kPool = 12'000, kTopicTest = 3000, kTopicBudget = 1200, kTopicRounds = 3;

// The class of a point: the largest output of a random network with one hidden layer.
class TopicTeacher {
 public:
  explicit TopicTeacher(const base::Random& random) : first_(kTopicHidden * kTopicDims), second_(kTopicClasses * kTopicHidden) {
    random.for_purpose("first").fill_normal(first_);
    random.for_purpose("second").fill_normal(second_);
  }
  int64_t label(const float* x) const {
    std::array<float, kTopicHidden> hidden{};
    for (size_t h = 0; h < kTopicHidden; ++h)
      hidden[h] = std::max(0.0F, std::inner_product(x, x + kTopicDims, first_.begin() + static_cast<int64_t>(h) * kTopicDims, 0.0F));
    std::array<float, kTopicClasses> outputs{};
    for (size_t c = 0; c < kTopicClasses; ++c)
      outputs[c] = std::inner_product(hidden.begin(), hidden.end(), second_.begin() + static_cast<int64_t>(c) * kTopicHidden, 0.0F);
    return std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
  }

 private:
  std::vector<float> first_, second_;
};

// Every third topic, from the second largest on, has random labels.
bool is_junk(int64_t topic) { return topic % 3 == 1 && topic < 27; }

// Rows kPool: the pool, of topics whose sizes fall like 1 / rank. After them the test rows, equally many of each topic, all with the right
// class. Columns: the topic, the right class, a random one.
MadeTable topic_rows(uint64_t seed) {
  const base::Random random = base::Random(seed).for_purpose("topics");
  const TopicTeacher teacher(random.for_purpose("teacher"));
  std::vector<float> centres(kTopics * kTopicDims);
  random.for_purpose("centres").fill_normal(centres);
  std::vector<double> weights;
  for (int64_t t = 0; t < kTopics; ++t) weights.push_back(1.0 / static_cast<double>(t + 1));
  const std::vector<int64_t> sizes = data::capped_shares(weights, std::vector<int64_t>(kTopics, kPool), kPool, random.for_purpose("sizes"));
  MadeTable made{.features = kTopicDims, .columns = {{"topic", {}}, {"right", {}}, {"noise", {}}}};
  const auto add = [&](int64_t topic, const base::Random& of_row, bool test) {
    std::vector<float> x(kTopicDims);
    of_row.fill_normal(x);
    for (size_t k = 0; k < kTopicDims; ++k) x[k] += 1.5F * centres[static_cast<size_t>(topic * kTopicDims) + k];
    made.values.insert(made.values.end(), x.begin(), x.end());
    const int64_t right = teacher.label(x.data());
    made.labels.push_back(is_junk(topic) && !test ? static_cast<int64_t>(of_row.for_purpose("label").below(0, kTopicClasses)) : right);
    made.columns[0].second.push_back(topic);
    made.columns[1].second.push_back(right);
    made.columns[2].second.push_back(static_cast<int64_t>(of_row.for_purpose("noise").below(0, kTopicClasses)));
  };
  for (int64_t t = 0; t < kTopics; ++t)
    for (int64_t i = 0; i < sizes[static_cast<size_t>(t)]; ++i)
      add(t, random.for_purpose("pool").for_index(static_cast<uint64_t>(t)).for_index(static_cast<uint64_t>(i)), false);
  for (int64_t i = 0; i < kTopicTest; ++i) add(i % kTopics, random.for_purpose("test").for_index(static_cast<uint64_t>(i)), true);
  return made;
}

struct Topics {
  fs::path folder;
  MadeTable rows;
  explicit Topics(const fs::path& where, uint64_t seed) : folder(where), rows(topic_rows(seed)) {
    fs::create_directories(folder);
    write_made_table(folder / "pool.csv", rows, 0, kPool);
    write_made_table(folder / "test.csv", rows, kPool, kTopicTest);
  }
  bool junk(int64_t sample) const { return is_junk(rows.columns[0].second[static_cast<size_t>(sample)]); }
  double junk_share(const std::vector<int64_t>& samples) const {
    return static_cast<double>(std::count_if(samples.begin(), samples.end(), [&](int64_t one) { return junk(one); })) /
           static_cast<double>(samples.size());
  }
  double junk_share_of_pool() const {
    std::vector<int64_t> all(kPool);
    std::iota(all.begin(), all.end(), int64_t{0});
    return junk_share(all);
  }
};

IterateRecipe topics_recipe(const Topics& topics, uint64_t seed, const std::string& study) {
  return read_iterate({.text = fmt::format(R"(
[study]
kind = "iterate"
budget = {}
rounds = {}
clusters = 40
scorer = "reference"
round_epochs = 1
{}
[model]
kind = "classifier"
hidden = [64]
[data]
kind = "table"
path = "{}"
test_file = "{}"
ignore = ["topic", "right", "noise"]
standardize = false
[train]
steps = 360
global_batch = 50
micro_batch = 50
seed = {}
[optim]
learning_rate = 0.003
weight_decay = 0.0
schedule = "constant"
warmup_steps = 0
[eval]
every = 0
[snapshot]
every = 0
last = false
[log]
tensorboard = false
trace = false
)",
                                           kTopicBudget, kTopicRounds, study, (topics.folder / "pool.csv").string(),
                                           (topics.folder / "test.csv").string(), seed),
                       .name = "the proof"},
                      {});
}

comm::LocalOptions silent_ranks() {
  comm::LocalOptions options;
  options.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  return options;
}

using ScoringOrder = std::function<void(std::vector<int64_t>& samples)>;

IterateResult run_rounds(const IterateRecipe& recipe, const fs::path& out, int ranks = 1, const ScoringOrder& scoring_order = {}) {
  const base::Stop never;
  IterateResult result;
  const StudySetup setup{.out = out, .scoring_order = scoring_order};
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, silent_ranks()).run([&](comm::World& world) {
         IterateResult mine = run_iterate(world, recipe, setup, never);
         if (world.rank() == 0) result = std::move(mine);
       }))
    if (error) std::rethrow_exception(error);
  return result;
}

// The weight of the clusters most of whose samples have random labels.
double junk_weight(const Topics& topics, const IterateResult& result, const std::vector<double>& weights) {
  std::vector<double> junk(result.sizes.size());
  for (size_t i = 0; i < result.labels.size(); ++i) junk[static_cast<size_t>(result.labels[i])] += topics.junk(static_cast<int64_t>(i));
  double sum = 0;
  for (size_t c = 0; c < weights.size(); ++c)
    if (2 * junk[c] > static_cast<double>(result.sizes[c])) sum += weights[c];
  return sum;
}

// Samples that were added twice, and rounds that did not add an equal part of the budget.
double wrong_rounds(const IterateResult& result) {
  std::set<int64_t> all;
  double wrong = 0;
  for (const IterateRound& one : result.rounds) {
    wrong += static_cast<int64_t>(one.added.size()) != kTopicBudget / kTopicRounds;
    for (const int64_t id : one.added) wrong += !all.insert(id).second;
  }
  return wrong + static_cast<double>(!std::equal(all.begin(), all.end(), result.selected.begin(), result.selected.end()));
}

struct TopicOutcome {
  double weight = 0, without_scores = 0;                                        // of junk clusters after two updates, against the first
  double pool = 0, iterative = 0, clusters = 0, random = 0, junk_without = 0;   // shares of junk
  double iterative_right = 0, clusters_right = 0, random_right = 0, wrong = 0;  // accuracies
};

TopicOutcome compare_on_topics(const fs::path& folder, uint64_t seed, const std::string& pictures) {
  const Topics topics(folder, seed);
  const auto run = [&](const std::string& name, const std::string& keys) {
    return run_rounds(topics_recipe(topics, seed, keys), folder / name);
  };
  const IterateResult iterative = run("iterative", "reference = \"right\""), clusters = run("clusters", "method = \"clusters\""),
                      random = run("random", "method = \"random\"");
  const IterateResult blind = run("blind", "reference = \"noise\"");  // scores that say nothing
  TopicOutcome found;
  const auto ratio = [&](const IterateResult& of) {
    return junk_weight(topics, of, of.rounds.back().weights) / junk_weight(topics, of, of.rounds.front().weights);
  };
  found.weight = ratio(iterative);
  found.without_scores = ratio(blind);
  found.pool = topics.junk_share_of_pool();
  found.iterative = topics.junk_share(iterative.selected);
  found.clusters = topics.junk_share(clusters.selected);
  found.random = topics.junk_share(random.selected);
  found.junk_without = topics.junk_share(blind.selected);
  found.iterative_right = iterative.accuracy;
  found.clusters_right = clusters.accuracy;
  found.random_right = random.accuracy;
  found.wrong = wrong_rounds(iterative) + wrong_rounds(blind);
  if (!pictures.empty() && seed % 100 == 0)
    fs::copy_file(folder / "iterative" / "weights.svg", fs::path(pictures) / "diversify-conquer-weights.svg",
                  fs::copy_options::overwrite_existing);
  return found;
}

// 1 to 4: junk fades, the model gets better; without new weights neither happens.
void rounds_on_topics(const ProofOptions& options, Findings& findings, base::Log& log) {
  std::vector<TopicOutcome> found(kTopicSeeds);
  in_parallel(kTopicSeeds, [&](int64_t inner) {
    found[static_cast<size_t>(inner)] = compare_on_topics(fs::path(options.scratch) / fmt::format("topics-{}", inner),
                                                          options.seed * 100 + static_cast<uint64_t>(inner), options.pictures);
  });
  for (const TopicOutcome& one : found)
    log.info(
        "weight of junk x{:.2f} (blind x{:.2f}); junk share: pool {:.3f}, iterative {:.3f}, clusters {:.3f}, random {:.3f}, blind {:.3f}; "
        "accuracy: iterative {:.4f}, clusters {:.4f}, random {:.4f}",
        one.weight, one.without_scores, one.pool, one.iterative, one.clusters, one.random, one.junk_without, one.iterative_right,
        one.clusters_right, one.random_right);
  const auto most = [&](const auto& of) {
    double highest = -INFINITY;
    for (const TopicOutcome& one : found) highest = std::max(highest, of(one));
    return highest;
  };
  const auto mean = [&](const auto& of) {
    double sum = 0;
    for (const TopicOutcome& one : found) sum += of(one);
    return sum / static_cast<double>(found.size());
  };
  const std::string all = fmt::format(", largest of {} inner seeds", kTopicSeeds),
                    means = fmt::format(", mean of {} inner seeds", kTopicSeeds);
  findings.at_most("1. weight of junk clusters after two updates, as a multiple of the first" + all, 1,
                   most([](const TopicOutcome& one) { return one.weight; }), 0.6);
  findings.at_most("2. junk share of the final selection, beyond that of the pool" + all, 0,
                   most([](const TopicOutcome& one) { return one.iterative - one.pool; }), -0.04);
  findings.at_most("2. random choice: distance of its junk share from the pool's" + all, 0,
                   most([](const TopicOutcome& one) { return std::abs(one.random - one.pool); }), 0.03);
  findings.at_most("2. clusters alone: distance of their junk share from the pool's" + all, 0,
                   most([](const TopicOutcome& one) { return std::abs(one.clusters - one.pool); }), 0.03);
  findings.at_least("3. held-out accuracy of the rounds, beyond a random choice" + means,
                    mean([](const TopicOutcome& one) { return one.random_right; }),
                    mean([](const TopicOutcome& one) { return one.iterative_right - one.random_right; }), 0.015);
  findings.at_least("3. the same of clusters alone" + means, mean([](const TopicOutcome& one) { return one.random_right; }),
                    mean([](const TopicOutcome& one) { return one.clusters_right - one.random_right; }), 0);
  findings.at_least("4. control, scores against random classes: weight of junk clusters as in 1 (must be above 0.6), mean", 1,
                    mean([](const TopicOutcome& one) { return one.without_scores; }), 0.75);
  findings.at_least("4. control, likewise: junk share beyond the pool's as in 2 (must be above -0.04), mean", 0,
                    mean([](const TopicOutcome& one) { return one.junk_without - one.pool; }), -0.04);
  findings.at_most("5. rounds that did not add a third of the budget, and samples added twice", 0,
                   most([](const TopicOutcome& one) { return one.wrong; }), 0);
}

void put_in_random_order(auto& list, const base::Random& random) {
  for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i, i)]);
}

// Scores of samples after a round's training, by the proof itself.
std::vector<double> scores_by_hand(const Topics& topics, const IterateRecipe& recipe, const std::vector<int64_t>& samples) {
  const base::Recipe training = with(recipe.training, {"train.steps=0", "train.epochs=1"});
  std::vector<double> scores;
  const base::Stop never;
  for (const std::exception_ptr& error : comm::LocalNetwork(1, silent_ranks()).run([&](comm::World& world) {
         train::run(world, training, {.out = {}, .cache = {}, .terminal = nullptr}, data::Subset::of(samples), never,
                    {.at_end = [&](train::Job& job) {
                      const at::Tensor answers = score_samples(job, samples, {.probabilities = true}).probabilities.argmax(1);
                      for (size_t i = 0; i < samples.size(); ++i) {
                        const auto id = static_cast<size_t>(samples[i]);
                        const int64_t right = topics.rows.columns[1].second[id];
                        scores.push_back(static_cast<double>(topics.rows.labels[id] == right) -
                                         static_cast<double>(answers[static_cast<int64_t>(i)].item<int64_t>() == right));
                      }
                    }});
       }))
    if (error) std::rethrow_exception(error);
  return scores;
}

// 4. Whole studies whose samples are scored in other orders. A control joins the scores of the first round by arrival.
void late_answers(const ProofOptions& options, Findings& findings) {
  constexpr uint64_t kOrders = 4;
  const Topics topics(fs::path(options.scratch) / "late", options.seed);
  const IterateRecipe recipe = topics_recipe(topics, options.seed, "reference = \"right\"");
  const IterateResult result = run_rounds(recipe, topics.folder / "as drawn");
  const base::Random random = base::Random(options.seed).for_purpose("late");
  double differ = 0, moved = 0;
  for (uint64_t order = 0; order < kOrders; ++order) {
    uint64_t round = 0;
    const IterateResult late = run_rounds(recipe, topics.folder / fmt::format("order-{}", order), 1, [&](std::vector<int64_t>& samples) {
      const std::vector<int64_t> drawn = samples;
      put_in_random_order(samples, random.for_index(order).for_index(round++));
      for (size_t i = 0; i < drawn.size(); ++i) moved += samples[i] != drawn[i];
    });
    differ += late.selected != result.selected;
    differ += late.weights != result.weights;
    for (size_t r = 0; r < result.rounds.size(); ++r) differ += late.rounds[r].weights != result.rounds[r].weights;
  }
  findings.at_least(fmt::format("4. samples of whole studies scored in {} other orders: places in the order that changed", kOrders), 0,
                    moved, 1000);
  findings.at_most("4. likewise: selections, and weights of a round, that are not those of the order in which they were drawn", 0, differ,
                   0);
  const std::vector<int64_t>& asked = result.rounds.front().added;
  const std::vector<double> by_id = scores_by_hand(topics, recipe, asked);
  std::vector<double> by_arrival = by_id;
  put_in_random_order(by_arrival, random.for_purpose("arrival"));
  const auto means = [&](const std::vector<double>& scores) {
    std::vector<double> sums(result.sizes.size()), counts(result.sizes.size());
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto at = static_cast<size_t>(result.labels[static_cast<size_t>(asked[i])]);
      sums[at] += scores[i], ++counts[at];
    }
    for (size_t c = 0; c < sums.size(); ++c) sums[c] = counts[c] > 0 ? sums[c] / counts[c] : NAN;
    return sums;
  };
  double apart = 0;
  for (size_t c = 0; const double mean : means(by_id)) {
    const double of_study = result.rounds.front().scores[c++];
    apart += std::isnan(mean) != std::isnan(of_study) || std::abs(mean - of_study) > 1e-12;
  }
  const std::vector<double>& first = result.rounds.front().weights;
  const auto weight_after = [&](const std::vector<double>& scores) {
    return junk_weight(topics, result, updated_weights(first, means(scores), /*replace=*/false, 0)) / junk_weight(topics, result, first);
  };
  findings.at_most("4. mean scores of clusters after the first round, against the proof's own: clusters that differ", 0, apart, 0);
  findings.at_least("4. control, scores joined by arrival: weight of junk after an update, beyond that of scores joined by id",
                    weight_after(by_id), weight_after(by_arrival) - weight_after(by_id), 0.05);
}

// Upper tail of the chi-square distribution (Wilson and Hilferty's approximation).
double chi_square_p(double x, double freedom) {
  const double z = (std::cbrt(x / freedom) - (1 - 2 / (9 * freedom))) / std::sqrt(2 / (9 * freedom));
  return 0.5 * std::erfc(z / std::numbers::sqrt2);
}

// 5. Quotas and draws.
void exact_quotas(const ProofOptions& options, Findings& findings) {
  constexpr uint64_t kVectors = 1000, kDraws = 100'000, kStreams = 5;
  const base::Random random = base::Random(options.seed).for_purpose("quotas");
  double wrong = 0;
  for (uint64_t i = 0; i < kVectors; ++i) {
    const base::Random here = random.for_index(i);
    const uint64_t clusters = 1 + here.below(0, 60);
    std::vector<int64_t> sizes;
    std::vector<double> weights;
    for (uint64_t c = 0; c < clusters; ++c) {
      sizes.push_back(static_cast<int64_t>(here.for_purpose("size").below(c, here.for_purpose("small").below(c, 3) == 0 ? 4 : 500)));
      weights.push_back(here.for_purpose("weight").uniform(c));
    }
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const auto budget = static_cast<int64_t>(here.for_purpose("budget").below(0, static_cast<uint64_t>(all) + 1));
    const std::vector<int64_t> quotas = data::capped_shares(weights, sizes, budget, here);
    wrong += std::accumulate(quotas.begin(), quotas.end(), int64_t{0}) != budget;
    for (size_t c = 0; c < clusters; ++c) wrong += quotas[c] < 0 || quotas[c] > sizes[c];
  }
  findings.at_most("5. quotas of 1,000 random lists of sizes: sums that are not the budget, quotas out of range", 0, wrong, 0);

  const std::vector<double> quality{1, 2, 3, 4, 5, 0.5, 7, 2.5};
  const double total = std::accumulate(quality.begin(), quality.end(), 0.0);
  std::vector<int64_t> ids(quality.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  std::vector<double> all_p;
  for (uint64_t stream = 0; stream < kStreams; ++stream) {
    std::vector<double> counts(quality.size());
    for (uint64_t d = 0; d < kDraws; ++d)
      for (const int64_t one : draw_members("weighted", ids, ids, quality, 1, random.for_purpose("draw").for_index(stream).for_index(d)))
        ++counts[static_cast<size_t>(one)];
    double x = 0;
    for (size_t i = 0; i < quality.size(); ++i) {
      const double expected = static_cast<double>(kDraws) * quality[i] / total;
      x += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    all_p.push_back(chi_square_p(x, static_cast<double>(quality.size() - 1)));
  }
  std::sort(all_p.begin(), all_p.end());
  findings.at_least("5. 100,000 draws in proportion to quality: chi-square p, median of 5 streams", 0.5, all_p[kStreams / 2], 0.01);
}

// 6. The same selection on any number of ranks.
void rounds_on_ranks(const ProofOptions& options, Findings& findings) {
  const Topics topics(fs::path(options.scratch) / "ranks", options.seed + 50);
  const IterateRecipe recipe = topics_recipe(topics, options.seed, "reference = \"right\"");
  IterateResult alone;
  double differ = 0;
  for (const int ranks : {1, 2, 4}) {
    IterateResult one = run_rounds(recipe, topics.folder / fmt::format("{}", ranks), ranks);
    if (ranks == 1)
      alone = std::move(one);
    else
      differ += one.selected != alone.selected;
  }
  findings.at_most("6. 2 and 4 ranks: selections that are not that of one", 0, differ, 0);
}

}  // namespace

void prove_diversify_conquer(const ProofOptions& options, Findings& findings, base::Log& log) {
  exact_quotas(options, findings);
  rounds_on_topics(options, findings, log);
  late_answers(options, findings);
  rounds_on_ranks(options, findings);
  findings.skip(
      "H200: a decoder of 30M, 8 families of instructions of which 2 have shuffled answers, scored by perplexity: the loss of a random "
      "choice of twice the budget",
      "this proof has no part for a GPU");
}

}  // namespace cairn::study
