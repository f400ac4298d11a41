#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "data/corpus/data_cache.h"
#include "data/open.h"
#include "data/search/k_means.h"
#include "data/selection/concepts.h"
#include "data/selection/embedding_index.h"
#include "data/selection/pool.h"
#include "data/selection/quota.h"
#include "data/selection/simple_picks.h"
#include "data/selection/subset_file.h"
#include "data/selection/targets.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "selection_rows.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Files of subsets and columns.

TEST(SubsetFile, ComesBackAsItWas) {
  const harness::ScratchFolder scratch;
  const std::string path = scratch / "kept";
  const DocumentSubset subset{
      .source = 7, .documents = 100, .ids = {2, 5, 99}, .weights = {1, 0.5f, 0}, .method = "top", .input = 9, .how = {{"eps", 0.1}}};
  write_subset(path, subset);
  const DocumentSubset back = read_subset(path);
  EXPECT_EQ(back.ids, subset.ids);
  EXPECT_EQ(back.weights, subset.weights);
  EXPECT_EQ(back.hash(), subset.hash());
  EXPECT_EQ(back.method, "top");
  EXPECT_EQ(back.how["eps"], 0.1);
  check_source(back, "data.subset", path, 7, 100);
  EXPECT_THAT(refusal_of([&] { check_source(back, "data.subset", path, 8, 100); }), HasSubstr("of other data"));
}

TEST(SubsetFile, RefusesEveryDamagedByte) {
  const harness::ScratchFolder scratch;
  write_subset(scratch / "kept", {.source = 7, .documents = 100, .ids = {2, 5, 99}, .method = "top"});
  const std::string good = scratch.text_of("kept");
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    scratch.file("bad", bad);
    EXPECT_NE(refusal_of([&] { read_subset(scratch / "bad"); }), "accepted") << "byte " << at;
    scratch.file("bad", good.substr(0, at));
    EXPECT_NE(refusal_of([&] { read_subset(scratch / "bad"); }), "accepted") << "cut at " << at;
  }
}

TEST(ScoreColumn, RefusesNumbersThatAreNotFinite) {
  const harness::ScratchFolder scratch;
  write_column(scratch / "good", {.source = 3, .name = "perplexity", .scores = {1, 2}});
  EXPECT_THAT(read_column(scratch / "good").scores, ElementsAre(1, 2));
  write_column(scratch / "bad", {.source = 3, .name = "perplexity", .scores = {1, NAN}});
  EXPECT_THAT(refusal_of([&] { read_column(scratch / "bad"); }), HasSubstr("the score of document 1 is nan"));
  EXPECT_THAT(refusal_of([&] { read_subset(scratch / "good"); }), HasSubstr("not a subset"));
}

// Training on a subset.

std::string jsonl_of(const std::vector<int>& numbers) {
  std::string lines;
  for (const int number : numbers)
    lines += "{\"text\": \"Document number " + std::to_string(number) + " says " + std::string(static_cast<size_t>(number % 17), 'x') +
             " and goes.\", \"kind\": \"k" + std::to_string(number % 3) + "\"}\n";
  return lines;
}

std::vector<std::vector<int64_t>> samples_of(const Dataset& dataset, const SampleRange& range) {
  std::vector<std::vector<int64_t>> samples;
  for (int64_t id = range.first; id < range.first + range.count; ++id) {
    mesh::Batch batch;
    dataset.fill(std::span(&id, 1), batch);
    std::vector<int64_t> all;
    for (const char* name : {"tokens", "targets", "documents", "positions"}) {
      const auto found = batch.fields.find(name);
      if (found == batch.fields.end()) continue;
      const auto* x = found->second.tensor.const_data_ptr<int64_t>();
      all.insert(all.end(), x, x + found->second.tensor.numel());
    }
    samples.push_back(all);
  }
  return samples;
}

class TrainsOnSubset : public testing::Test {
 protected:
  TrainsOnSubset() {
    std::vector<int> all(200);
    std::iota(all.begin(), all.end(), 0);
    scratch.file("pool.jsonl", jsonl_of(all));
    options.path = scratch / "pool.jsonl";
    options.tokenizer = TokenizerKind::bytes;
    options.length = 64;
  }
  DocumentSubset choose(std::vector<int64_t> ids, std::vector<float> weights = {}) {
    const Pool pool = open_pool(options, {}, log);
    DocumentSubset subset{
        .source = pool.digest(), .documents = pool.documents(), .ids = std::move(ids), .weights = std::move(weights), .method = "test"};
    write_subset(scratch / "kept", subset);
    return subset;
  }
  harness::ScratchFolder scratch;
  base::Log log = base::Log({.level = base::Level::error, .terminal = nullptr, .file = {}});
  DataOptions options;
};

TEST_F(TrainsOnSubset, AsOnAFileOfTheseDocumentsAlone) {
  const std::vector<int> numbers{3, 4, 17, 50, 51, 120};
  scratch.file("export.jsonl", jsonl_of(numbers));
  std::vector<int> begin(30), end(170);
  std::iota(begin.begin(), begin.end(), 0);
  std::iota(end.begin(), end.end(), 30);
  const std::vector<std::string> two{scratch.file("begin.jsonl", jsonl_of(begin)), scratch.file("end.jsonl", jsonl_of(end))};
  for (const bool of_two_files : {false, true}) {
    if (of_two_files) options.path.clear(), options.sources = two;
    choose({numbers.begin(), numbers.end()});
    for (const Packing packing : {Packing::stream, Packing::separate, Packing::documents, Packing::none, Packing::sequences}) {
      options.packing = packing;
      DataOptions chosen = options, exported = options;
      chosen.subset = scratch / "kept";
      exported.path = scratch / "export.jsonl";
      exported.sources.clear();
      for (const std::string& cache : {std::string(), (scratch / "cache").string()}) {
        const OpenedData a = open_data(chosen, {.cache_folder = cache}, log), b = open_data(exported, {.cache_folder = cache}, log);
        EXPECT_EQ(samples_of(*a.samples, a.samples->training()), samples_of(*b.samples, b.samples->training()))
            << static_cast<int>(packing) << (of_two_files ? ", two files" : "");
      }
    }
  }
}

TEST_F(TrainsOnSubset, WhileHeldOutDataStaysThatOfThePool) {
  choose({3, 100, 198, 199});
  for (const Packing packing : {Packing::stream, Packing::documents, Packing::none}) {
    options.packing = packing;
    DataOptions chosen = options;
    chosen.subset = scratch / "kept";
    const CorpusOptions how{.held_out_fraction = 0.1};
    const OpenedData a = open_data(chosen, how, log), b = open_data(options, how, log);
    EXPECT_EQ(samples_of(*a.samples, a.samples->held_out()), samples_of(*b.samples, b.samples->held_out()));
    int64_t targets = 0, expected = 0;
    for (int64_t id = 0; id < a.samples->training().count; ++id) targets += a.samples->tokens_in(id);
    const Pool pool = open_pool(options, {}, log);
    for (const int64_t document : {3, 100}) expected += pool.tokens_in(document);
    EXPECT_NEAR(static_cast<double>(targets), static_cast<double>(expected), 2) << "198 and 199 are held out";
  }
}

TEST_F(TrainsOnSubset, WithWeightsOfDocuments) {
  choose({3, 100, 150}, {1, 2.5f, 0});
  options.subset = scratch / "kept";
  options.packing = Packing::none;
  const OpenedData opened = open_data(options, {.held_out_fraction = 0.1}, log);
  mesh::Batch batch;
  const std::vector<int64_t> ids{0, 1, 2, opened.samples->held_out().first};
  opened.samples->fill(ids, batch);
  ASSERT_TRUE(batch.weights.defined());
  EXPECT_TRUE(at::equal(batch.weights, at::tensor({1.0f, 2.5f, 0.0f, 1.0f})));
  options.packing = Packing::documents;
  EXPECT_THAT(refusal_of([&] { open_data(options, {}, log); }), HasSubstr("data.packing = documents"));
}

TEST_F(TrainsOnSubset, UnlessItIsOfOtherData) {
  choose({3, 100});
  options.subset = scratch / "kept";
  scratch.file("pool.jsonl", jsonl_of({1, 2, 3}));
  EXPECT_THAT(refusal_of([&] { open_data(options, {}, log); }), HasSubstr("of other data"));
  scratch.file("kept", "not a subset");
  EXPECT_THAT(refusal_of([&] { check_data(options); }), HasSubstr("not a subset"));
}

TEST_F(TrainsOnSubset, WhoseRecordsCanBeReadAgain) {
  std::vector<std::string> labels;
  std::string lines;
  for_each_record(options, "kind", [&](const PoolRecord& record) {
    labels.push_back(record.label);
    if (record.document == 5) lines = record.json;
  });
  ASSERT_EQ(labels.size(), 200u);
  EXPECT_EQ(labels[4], "k1");
  EXPECT_THAT(lines, HasSubstr("Document number 5 says"));
}

// Quotas.

// Projected gradient descent on the same problem.
std::vector<double> slow_projection(const std::vector<double>& wanted, const std::vector<int64_t>& lower, const std::vector<int64_t>& upper,
                                    int64_t total) {
  double low = -1e7, high = 1e7;
  std::vector<double> x(wanted.size());
  for (int step = 0; step < 200; ++step) {
    const double lambda = (low + high) / 2;
    double sum = 0;
    for (size_t j = 0; j < wanted.size(); ++j) {
      x[j] = std::clamp(wanted[j] + lambda, static_cast<double>(lower[j]), static_cast<double>(upper[j]));
      sum += x[j];
    }
    (sum < static_cast<double>(total) ? low : high) = lambda;
  }
  return x;
}

TEST(Quota, EqualsASlowProjectionOnRandomProblems) {
  for (uint64_t instance = 0; instance < 200; ++instance) {
    const base::Random random = base::Random(instance);
    const size_t k = 1 + random.below(0, 50);
    std::vector<double> wanted;
    std::vector<int64_t> lower, upper;
    for (size_t j = 0; j < k; ++j) {
      const base::Random one = random.for_index(j);
      wanted.push_back(one.uniform(0) * 200);
      upper.push_back(static_cast<int64_t>(one.below(1, 300)));
      lower.push_back(static_cast<int64_t>(one.below(2, static_cast<uint64_t>(upper.back()) + 1)));
    }
    const int64_t total = sum_of(lower) + static_cast<int64_t>(random.below(1, static_cast<uint64_t>(sum_of(upper) - sum_of(lower)) + 1));
    const Projection found = project_onto_total(wanted, lower, upper, total);
    const std::vector<double> expected = slow_projection(wanted, lower, upper, total);
    for (size_t j = 0; j < k; ++j) EXPECT_NEAR(found.x[j], expected[j], 1e-7) << instance;
    const std::vector<int64_t> counts = round_to_total(found.x, upper, total);
    EXPECT_EQ(sum_of(counts), total);
    for (size_t j = 0; j < k; ++j) {
      EXPECT_GE(counts[j], lower[j]);
      EXPECT_LE(counts[j], upper[j]);
      EXPECT_LE(std::abs(static_cast<double>(counts[j]) - found.x[j]), 1 + 1e-6);
    }
  }
}

TEST(Quota, OfCappedSharesSumsExactly) {
  for (uint64_t instance = 0; instance < 1000; ++instance) {
    const base::Random random = base::Random(instance).for_purpose("sizes");
    std::vector<int64_t> sizes;
    std::vector<double> weights;
    for (size_t j = 0; j <= random.below(0, 60); ++j) {
      sizes.push_back(static_cast<int64_t>(random.below(2 * j + 1, 40)));
      weights.push_back(random.uniform(1000 + j));
    }
    const int64_t total = static_cast<int64_t>(random.below(999, static_cast<uint64_t>(sum_of(sizes)) + 1));
    const std::vector<int64_t> counts = capped_shares(weights, sizes, total, random);
    EXPECT_EQ(sum_of(counts), total) << instance;
    for (size_t j = 0; j < sizes.size(); ++j) EXPECT_TRUE(counts[j] >= 0 && counts[j] <= sizes[j]) << instance;
  }
}

TEST(Quota, BelowOnePerClusterIsRightInTheMean) {
  const std::vector<double> weights{1, 2, 3, 4, 10};
  const std::vector<int64_t> sizes{100, 100, 100, 100, 100};
  std::vector<double> sums(5, 0);
  constexpr int kDraws = 4000;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const std::vector<int64_t> counts = capped_shares(weights, sizes, 2, base::Random(draw));
    for (size_t j = 0; j < 5; ++j) sums[j] += static_cast<double>(counts[j]) / kDraws;
  }
  for (size_t j = 0; j < 5; ++j) EXPECT_NEAR(sums[j], weights[j] / 10, 0.04);
}

// Picks.

TEST(Picks, DrawInProportionToWeights) {
  const std::vector<int64_t> ids = first_numbers(4), among = ids;
  const std::vector<double> weights{1, 2, 3, 4};
  std::vector<double> counts(4, 0);
  constexpr int kDraws = 100'000;
  for (uint64_t draw = 0; draw < kDraws; ++draw)
    ++counts[static_cast<size_t>(draw_weighted(among, ids, weights, 1, base::Random(draw))[0])];
  double chi_square = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double expected = kDraws * weights[i] / 10;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 11.34);  // p = 0.01 with 3 degrees of freedom
}

TEST(Picks, BalancedPassSharesOfExhaustedGroupsOn) {
  std::vector<int32_t> groups(10, 0);
  groups.resize(110, 1);
  groups.resize(310, 2);
  const std::vector<int64_t> kept = pick_balanced(first_numbers(310), groups, 90, base::Random(1));
  std::vector<int> counts(3, 0);
  for (const int64_t one : kept) ++counts[static_cast<size_t>(groups[static_cast<size_t>(one)])];
  EXPECT_THAT(counts, ElementsAre(10, 40, 40));
}

TEST(Picks, TakeDocumentsForReasonsOfTheirOwn) {
  const std::vector<int64_t> all = first_numbers(1000), kept = pick_random(all, 100, base::Random(5));
  const std::vector<int64_t> half(all.begin() + 500, all.end());
  const std::vector<int64_t> of_half = pick_random(half, 50, base::Random(5));
  int64_t common = 0;
  for (const int64_t position : of_half) common += std::ranges::binary_search(kept, half[static_cast<size_t>(position)]);
  EXPECT_GT(common, 35) << "the same documents have the same numbers";
}

TEST(Picks, ByScoreTakeTheMiddleToo) {
  const std::vector<float> scores{5, 1, 4, 2, 3};
  EXPECT_THAT(pick_by_score(scores, 2, ScoreOrder::highest), ElementsAre(0, 2));
  EXPECT_THAT(pick_by_score(scores, 2, ScoreOrder::lowest), ElementsAre(1, 3));
  EXPECT_THAT(pick_by_score(scores, 1, ScoreOrder::middle), ElementsAre(4));
}

TEST(Kmq, GivesEveryClusterItsShareAndPrefersQuality) {
  std::vector<int32_t> labels;
  std::vector<float> quality;
  for (int i = 0; i < 900; ++i) labels.push_back(i < 600 ? 0 : 1), quality.push_back(i % 10 == 0 ? 9.0f : 0.1f);
  const KmqResult found = pick_kmq(first_numbers(900), labels, 2, quality, {.keep = 90, .seed = 3});
  EXPECT_THAT(found.quotas, ElementsAre(60, 30));
  const auto good = std::ranges::count_if(found.kept, [](int64_t one) { return one % 10 == 0; });
  EXPECT_GT(good, 60) << "of 90, where a tenth of all have quality";
  EXPECT_THAT(refusal_of([&] { pick_kmq(first_numbers(900), labels, 2, quality, {.keep = 1, .quota = KmqQuota::equal}); }),
              HasSubstr("get none"));
  quality[3] = -1;
  EXPECT_THAT(refusal_of([&] { pick_kmq(first_numbers(900), labels, 2, quality, {.keep = 90}); }), HasSubstr("quality -1"));
}

// Concepts.

TEST(Concepts, KeepMoreOfSpreadOutClusters) {
  const at::Tensor centres = unit_rows(10, 32, 23), noise = unit_rows(2000, 32, 24);
  std::vector<int32_t> labels;
  std::vector<float> closeness;
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t c = i % 10;
    at::Tensor row = centres[c] + (c < 5 ? 0.1 : 0.8) * noise[i];
    row = row / row.norm();
    labels.push_back(static_cast<int32_t>(c));
    closeness.push_back((row * centres[c]).sum().item<float>());
  }
  const std::vector<int64_t> ids = first_numbers(2000);
  const ConceptResult found = prune_concepts(ids, labels, closeness, centres, {.keep = 400, .neighbours = 5, .balance = 0});
  EXPECT_EQ(found.kept.size(), 400u);
  int64_t dense = 0;
  for (size_t c = 0; c < 5; ++c) dense += found.clusters[c].quota;
  EXPECT_LT(dense, 120) << "five dense clusters of ten";
  for (const ConceptCluster& one : found.clusters) EXPECT_GE(one.quota, 1);
  const ConceptResult equal = prune_concepts(ids, labels, closeness, centres, {.keep = 400, .balance = 1});
  for (const ConceptCluster& one : equal.clusters) EXPECT_EQ(one.quota, 40);
  const ConceptResult ssp =
      prune_concepts(ids, labels, closeness, centres, {.keep = 400, .balance = 0, .shares = ConceptShares::proportional});
  for (const ConceptCluster& one : ssp.clusters) EXPECT_EQ(one.quota, 40);
  EXPECT_THAT(refusal_of([&] { prune_concepts(ids, labels, closeness, centres, {.keep = 2001}); }), HasSubstr("--keep 2001"));
  EXPECT_THAT(refusal_of([&] { prune_concepts(ids, labels, closeness, centres, {.keep = 5}); }), HasSubstr("Keep more"));
}

TEST(Concepts, KeepTheFarTheNearOrAny) {
  const at::Tensor centres = unit_rows(1, 4, 25);
  const std::vector<float> closeness{0.9f, 0.1f, 0.5f, 0.7f, 0.3f};
  const std::vector<int32_t> labels(5, 0);
  const auto kept = [&](ConceptPick within) {
    return prune_concepts(first_numbers(5), labels, closeness, centres, {.keep = 2, .within = within}).kept;
  };
  EXPECT_THAT(kept(ConceptPick::hard), ElementsAre(1, 4));
  EXPECT_THAT(kept(ConceptPick::easy), ElementsAre(0, 3));
  EXPECT_EQ(kept(ConceptPick::random).size(), 2u);
}

// Targets.

}  // namespace
}  // namespace cairn::data
