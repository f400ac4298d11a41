#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "data/open.h"
#include "data/retrieval/dataset.h"
#include "data/retrieval_folder.h"
#include "data/sampler.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DataOptions options_for(const std::string& folder) {
  DataOptions options;
  options.kind = "retrieval";
  options.path = folder;
  options.tokenizer = TokenizerKind::bytes;
  options.retrieval.query_tokens = 12;
  options.retrieval.passage_tokens = 20;
  return options;
}

OpenedData opened(const DataOptions& options, double held_out = 0) {
  base::Log log = base::Log::quiet();
  return open_data(options, {.held_out_fraction = held_out}, log);
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "not refused";
}

struct Drawing {
  int64_t clusters_per_batch = 1, margin_bins = 10;
  uint64_t seed = 3;
};

std::unique_ptr<Sampler> tas(const Dataset& samples, int64_t batch, const std::string& clusters, const Drawing& drawing = {}) {
  SamplerOptions options;
  options.clusters = clusters;
  options.clusters_per_batch = drawing.clusters_per_batch;
  options.margin_bins = drawing.margin_bins;
  return make_sampler("tas", {.from = Subset().within(samples.training()),
                              .global_batch = batch,
                              .steps = 100,
                              .seed = drawing.seed,
                              .options = options,
                              .samples = &samples});
}

TEST(Retrieval, PutsTheThreeTextsOfASampleIntoOneRow) {
  const harness::ScratchFolder scratch;
  scratch.file("queries.tsv", "a\tab\nb\tc\n");
  scratch.file("corpus.jsonl", "{\"_id\": \"x\", \"title\": \"t\", \"text\": \"uv\"}\n{\"id\": 7, \"text\": \"w\"}\n");
  scratch.file("pairs.tsv", "2.5\t-1\ta\tx\t7\n1 0 b 7 x\n");
  DataOptions options = options_for(scratch.path().string());
  options.retrieval.pooling = RetrievalPooling::mean;
  const OpenedData data = opened(options);
  mesh::Batch batch;
  data.samples->fill(std::vector<int64_t>{1, 0}, batch);
  const auto row = [&](const char* field, int64_t i) {
    const at::Tensor one = batch.field(field)[i].to(at::kLong).contiguous();
    return std::vector<int64_t>(one.const_data_ptr<int64_t>(), one.const_data_ptr<int64_t>() + one.numel());
  };
  const int64_t end = *data.tokenizer->find_end_of_text();
  EXPECT_THAT(row("tokens", 1), ElementsAre('a', 'b', 't', ' ', 'u', 'v', 'w'));
  EXPECT_THAT(row("tokens", 0), ElementsAre('c', 'w', 't', ' ', 'u', 'v', end));
  EXPECT_THAT(row("documents", 1), ElementsAre(0, 0, 1, 1, 1, 1, 2));
  EXPECT_THAT(row("documents", 0), ElementsAre(0, 1, 2, 2, 2, 2, 3));
  EXPECT_THAT(row("positions", 1), ElementsAre(0, 1, 0, 1, 2, 3, 0));
  EXPECT_TRUE(at::equal(batch.field("pool")[1].sum(1), at::ones({3})));
  EXPECT_EQ(batch.field("pool")[1][1][3].item<float>(), 0.25f);
  EXPECT_EQ(batch.field("pool")[1][0][2].item<float>(), 0);
  EXPECT_TRUE(at::equal(batch.field("pair_scores"), at::tensor({1.0, 0.0, 2.5, -1.0}, at::kDouble).view({2, 2})));
}

TEST(Retrieval, EndsTextsWithATokenForLastTokenPoolingAndCutsThemBeforeIt) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path());
  DataOptions options = options_for(folder);
  const OpenedData data = opened(options);
  const auto* samples = retrieval_samples(data.samples.get());
  const int32_t end = *data.tokenizer->find_end_of_text();
  for (int64_t i = 0; i < 24; ++i) {
    const auto query = samples->texts().query_tokens[i], passage = samples->texts().passage_tokens[i];
    EXPECT_EQ(query.back(), end);
    EXPECT_EQ(passage.back(), end);
    EXPECT_EQ(passage.size(), 20u);
  }
  mesh::Batch batch;
  samples->fill(std::vector<int64_t>{5}, batch);
  for (int64_t text = 0; text < 3; ++text) EXPECT_EQ(batch.field("tokens")[0][batch.field("pool")[0][text].argmax()].item<int64_t>(), end);
}

TEST(Retrieval, HoldsOutThePairsOfTheLastQueries) {
  const harness::ScratchFolder scratch;
  const OpenedData data = opened(options_for(write_retrieval(scratch.path())), 0.25);
  const auto* samples = retrieval_samples(data.samples.get());
  EXPECT_EQ(samples->training().count, 18 * 3);
  EXPECT_EQ(samples->held_out().count, 6 * 3);
  for (int64_t id = 0; id < samples->size(); ++id) EXPECT_EQ(samples->pair(id).query >= 18, id >= 54);
}

TEST(Retrieval, RefusesDamagedFilesWithTheLine) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path());
  const auto with = [&](const std::string& name, const std::string& text) {
    const harness::ScratchFolder other;
    write_retrieval(other.path());
    other.file(name, text);
    return refusal([&] { opened(options_for(other.path().string())); });
  };
  EXPECT_THAT(with("pairs.tsv", "1 0 q1 p1 p2\n1 0 q99 p1 p2\n1 0 q98 p77 p2\n"), HasSubstr("3 ids are unknown, first query q99 (line 2)"));
  EXPECT_THAT(with("pairs.tsv", "1 0 q1 p1\n"), HasSubstr("pairs.tsv:1: not \"pos_score"));
  EXPECT_THAT(with("pairs.tsv", "1 nan q1 p1 p2\n"), HasSubstr("pairs.tsv:1: not \"pos_score"));
  EXPECT_THAT(with("pairs.tsv", "1 0 q1 p1 p1\n"), HasSubstr("p1 is right and wrong at once"));
  EXPECT_THAT(with("pairs.tsv", "\n"), HasSubstr("no pair in it"));
  EXPECT_THAT(with("queries.tsv", "q1\tx\nq1\ty\n"), HasSubstr("queries.tsv:2: id q1 comes twice"));
  EXPECT_THAT(with("queries.tsv", "q1 x\n"), HasSubstr("no tab"));
  DataOptions none = options_for((scratch / "nowhere").string());
  EXPECT_THAT(refusal([&] { opened(none); }), HasSubstr("none of queries.tsv, queries.jsonl is there"));
}

TEST(TopicAwareSampling, DrawsEachBatchFromOneClusterAndNoQueryTwice) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path());
  const OpenedData data = opened(options_for(folder));
  const auto* samples = retrieval_samples(data.samples.get());
  const auto sampler = tas(*samples, 6, folder + "/clusters.tsv");  // clusters have 6 queries each
  std::map<int64_t, int> chosen;
  for (int64_t step = 0; step < 400; ++step) {
    std::set<int64_t> queries, clusters;
    for (const int64_t id : sampler->ids(step)) queries.insert(samples->pair(id).query), clusters.insert(samples->pair(id).query % 4);
    EXPECT_EQ(queries.size(), 6u);
    ASSERT_EQ(clusters.size(), 1u);
    ++chosen[*clusters.begin()];
  }
  for (const auto& [cluster, times] : chosen) EXPECT_NEAR(times, 100, 35) << cluster;
  EXPECT_EQ(sampler->ids(7), tas(*samples, 6, folder + "/clusters.tsv")->ids(7));
  EXPECT_NE(sampler->ids(7), tas(*samples, 6, folder + "/clusters.tsv", {.seed = 4})->ids(7));
}

TEST(TopicAwareSampling, TopsUpFromFurtherClustersAndKeepsQuotas) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path());
  const OpenedData data = opened(options_for(folder));
  const auto* samples = retrieval_samples(data.samples.get());
  for (const auto& [batch, per_batch, most] : {std::tuple{9, 1, 6}, {7, 2, 6}, {24, 1, 6}, {5, 5, 5}}) {
    const auto sampler = tas(*samples, batch, folder + "/clusters.tsv", {.clusters_per_batch = per_batch});
    for (int64_t step = 0; step < 50; ++step) {
      std::set<int64_t> queries;
      std::map<int64_t, int> by_cluster;
      for (const int64_t id : sampler->ids(step)) queries.insert(samples->pair(id).query), ++by_cluster[samples->pair(id).query % 4];
      EXPECT_EQ(queries.size(), static_cast<size_t>(batch));
      for (const auto& [cluster, count] : by_cluster) EXPECT_LE(count, most);
    }
  }
}

// Margins of one query, most of them small: drawn evenly over pairs they stay so; drawn over bins they do not.
TEST(TopicAwareSampling, DrawsMarginsEvenlyOverBins) {
  const harness::ScratchFolder scratch;
  scratch.file("queries.tsv", "q\tx\n");
  std::string passages = "right\tr\n", pairs;
  for (int i = 0; i < 40; ++i) {
    passages += fmt::format("p{}\tw\n", i);
    pairs += fmt::format("{} 0 q right p{}\n", i < 30 ? 0.01 * i : i < 38 ? 4.95 : 10.0, i);  // bins 0, 4 and 9 of 10
  }
  scratch.file("collection.tsv", passages);
  scratch.file("pairs.tsv", pairs);
  const auto clusters = scratch.file("clusters.tsv", "q\n").string();
  const OpenedData data = opened(options_for(scratch.path().string()));
  const auto shares = [&](int64_t bins) {
    const auto sampler = tas(*data.samples, 1, clusters, {.margin_bins = bins});
    std::vector<double> share(3);
    constexpr int kDraws = 6000;
    for (int64_t step = 0; step < kDraws; ++step) {
      const int64_t id = sampler->ids(step).front();
      share[id < 30 ? 0 : id < 38 ? 1 : 2] += 1.0 / kDraws;
    }
    return share;
  };
  for (const double share : shares(10)) EXPECT_NEAR(share, 1.0 / 3, 0.025);
  EXPECT_NEAR(shares(0)[0], 0.75, 0.025);
}

TEST(TopicAwareSampling, LeavesOutQueriesWithOnePairAndSaysSo) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path(), {.pairs_per_query = 2});
  std::ofstream(folder + "/pairs.tsv", std::ios::trunc) << "1 0 q0 p0 p1\n1 0.5 q0 p0 p2\n1 0 q1 p1 p2\n2 0 q2 p2 p3\n3 0 q2 p2 p4\n";
  const OpenedData data = opened(options_for(folder));
  const auto sampler = tas(*data.samples, 2, folder + "/clusters.tsv");
  EXPECT_THAT(sampler->schedule_text(), HasSubstr("clusters=2 empty_clusters_dropped=2 queries=2 mean_cluster=1.0"));
  EXPECT_THAT(sampler->schedule_text(), HasSubstr("dropped_with_one_pair=1"));
  EXPECT_THAT(tas(*data.samples, 2, folder + "/clusters.tsv", {.margin_bins = 0})->schedule_text(), HasSubstr("queries=3"));
}

TEST(TopicAwareSampling, RefusesWhatCannotBeDrawn) {
  const harness::ScratchFolder scratch;
  const std::string folder = write_retrieval(scratch.path()), clusters = folder + "/clusters.tsv";
  const OpenedData data = opened(options_for(folder));
  EXPECT_THAT(refusal([&] { tas(*data.samples, 25, clusters); }), HasSubstr("train.global_batch = 25: 24 queries"));
  EXPECT_THAT(refusal([&] { tas(*data.samples, 4, clusters, {.clusters_per_batch = 5}); }), HasSubstr("sampler.clusters_per_batch = 5"));
  EXPECT_THAT(refusal([&] { tas(*data.samples, 4, ""); }), HasSubstr("no clusters of queries"));
  const std::string unknown = scratch.file("unknown.tsv", "q1 z1\nz2 q2\n").string(),
                    twice = scratch.file("twice.tsv", "q1 q2\nq1\n").string();
  EXPECT_THAT(refusal([&] { tas(*data.samples, 2, unknown); }), HasSubstr("2 query ids are not in"));
  EXPECT_THAT(refusal([&] { tas(*data.samples, 2, twice); }), HasSubstr("query q1 comes twice"));
  const OpenedData half = opened(options_for(folder), 0.5);
  const std::string others = scratch.file("others.tsv", "q20 q21\n").string();
  EXPECT_THAT(refusal([&] { tas(*half.samples, 2, others); }), HasSubstr("no query is in a cluster and has pairs too"));
}

TEST(Judgements, AreReadFromBothFormsAndRefusedWithUnknownIds) {
  const harness::ScratchFolder scratch;
  write_retrieval(scratch.path());
  const TextTable queries = read_queries(scratch.path()), collection = read_collection(scratch.path());
  scratch.file("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\tp3\t2\nq1\tp2\t0\n");
  const auto judged = read_judgements(scratch.path(), queries, collection);
  ASSERT_EQ(judged[1].size(), 1u);
  EXPECT_EQ(judged[1][0].passage, 3);
  EXPECT_EQ(judged[1][0].grade, 2);
  scratch.file("qrels.tsv", "q1 0 p3 1\nq1 0 nobody 1\n");
  EXPECT_THAT(refusal([&] { read_judgements(scratch.path(), queries, collection); }), HasSubstr("1 ids are unknown, first passage nobody"));
}

}  // namespace
}  // namespace cairn::data
