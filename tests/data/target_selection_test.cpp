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
#include "data/selection/duplicates.h"
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

struct Brute {
  std::vector<int64_t> picks;
  std::vector<int64_t> of_queries;
};
// The full matrix of scores, and one pick after the other.
Brute brute_round_robin(const at::Tensor& queries, const at::Tensor& rows, int64_t keep) {
  std::vector<std::vector<Match>> orders;
  for (int64_t q = 0; q < queries.size(0); ++q) {
    std::vector<Match> all;
    for (int64_t i = 0; i < rows.size(0); ++i)
      all.push_back({i, scalar_product(queries.const_data_ptr<float>() + q * rows.size(1), rows.const_data_ptr<float>() + i * rows.size(1),
                                       rows.size(1))});
    std::ranges::sort(all, is_better);
    orders.push_back(all);
  }
  Brute found{{}, std::vector<int64_t>(orders.size(), 0)};
  std::vector<bool> taken(static_cast<size_t>(rows.size(0)), false);
  for (size_t turn = 0; static_cast<int64_t>(found.picks.size()) < keep; ++turn)
    for (const Match& match : orders[turn % orders.size()])
      if (!taken[static_cast<size_t>(match.id)]) {
        taken[static_cast<size_t>(match.id)] = true;
        found.picks.push_back(match.id);
        ++found.of_queries[turn % orders.size()];
        break;
      }
  return found;
}

PoolSearch search_in(const RowSource& rows, int ranks) {
  return {.rows = rows.rows(),
          .top =
              [&rows, ranks](const at::Tensor& queries, int64_t k, const std::vector<std::optional<Match>>& after) {
                std::vector<std::vector<std::vector<Match>>> lists(static_cast<size_t>(queries.size(0)));
                for (int rank = 0; rank < ranks; ++rank) {
                  const auto part = top_k(queries, rows, k, {.after = after, .share = share_of_rank(rows.rows(), rank, ranks)});
                  for (size_t q = 0; q < part.size(); ++q) lists[q].push_back(part[q]);
                }
                std::vector<std::vector<Match>> merged;
                for (const auto& one : lists) merged.push_back(merge_matches(one, k));
                return merged;
              },
          .best = [&rows](const at::Tensor& queries) { return best_scores(queries, rows); }};
}

std::vector<int64_t> positions_of(const TargetResult& result) {
  std::vector<int64_t> positions;
  for (const TargetPick& pick : result.picks) positions.push_back(pick.position);
  return positions;
}

TEST(Targets, LazyStreamingShardedSelectionEqualsBruteForce) {
  const at::Tensor rows = unit_rows(1500, 12, 31);
  const auto source = rows_in_memory(rows);
  int64_t rescans = 0;
  for (const int64_t m : {1, 7, 50}) {
    // Queries that agree exhaust each other's lists.
    at::Tensor queries = unit_rows(m, 12, 32) * 0.05 + unit_rows(1, 12, 33);
    queries = queries / queries.norm(2, 1, true);
    for (const int64_t keep : {10, 600, 1500}) {
      const Brute expected = brute_round_robin(queries, rows, keep);
      for (const int ranks : {1, 2, 4}) {
        const TargetResult found = pick_for_targets({{"t", queries}}, search_in(*source, ranks), keep, WithinTask::round_robin);
        EXPECT_EQ(positions_of(found), expected.picks) << m << " queries, " << keep << " kept, " << ranks << " ranks";
        EXPECT_EQ(found.picks_of_queries[0], expected.of_queries);
        for (const int64_t picks : found.picks_of_queries[0]) EXPECT_GE(picks, keep / m);
        rescans += found.rescans;
      }
    }
  }
  EXPECT_GT(rescans, 0) << "no list ran dry, so nothing was searched again";
}

TEST(Targets, TasksTakeTurns) {
  const at::Tensor rows = unit_rows(800, 16, 34), a = unit_rows(4, 16, 35), b = unit_rows(9, 16, 36);
  const auto source = rows_in_memory(rows);
  for (const WithinTask within : {WithinTask::max, WithinTask::round_robin}) {
    const TargetResult found = pick_for_targets({{"a", a}, {"b", b}}, search_in(*source, 2), 101, within);
    std::set<int64_t> distinct;
    std::vector<int64_t> counts(2, 0);
    for (const TargetPick& pick : found.picks) distinct.insert(pick.position), ++counts[static_cast<size_t>(pick.task)];
    EXPECT_EQ(distinct.size(), 101u);
    EXPECT_THAT(counts, ElementsAre(51, 50));
  }
  const TargetResult one = pick_for_targets({{"a", a}}, search_in(*source, 1), 50, WithinTask::max);
  const std::vector<float> best = best_scores(a, *source);
  std::vector<int64_t> kept = positions_of(one);
  std::ranges::sort(kept);
  EXPECT_EQ(kept, pick_by_score(best, 50, ScoreOrder::highest));
}

TEST(Targets, AreLeftOutWhereExcludedAndRefusedAboveThePool) {
  const at::Tensor rows = unit_rows(60, 8, 37), queries = rows.narrow(0, 0, 5);
  const auto source = rows_in_memory(rows);
  std::vector<bool> excluded(60, false);
  std::fill_n(excluded.begin(), 5, true);
  for (const WithinTask within : {WithinTask::max, WithinTask::round_robin}) {
    const TargetResult found = pick_for_targets({{"t", queries}}, search_in(*source, 1), 55, within, excluded);
    EXPECT_THAT(positions_of(found), testing::Each(testing::Ge(5)));
  }
  EXPECT_THAT(refusal_of([&] {
                pick_for_targets({{"t", queries}}, search_in(*source, 1), 56, WithinTask::max, excluded);
              }),
              HasSubstr("--keep 56: there are 55 documents"));
}

TEST(Targets, OneDominatingClusterOfQueriesStarvesOthersOnlyUnderMax) {
  // Nine of ten queries lie in one dense part of the pool.
  const at::Tensor centres = unit_rows(2, 16, 38), noise = unit_rows(1000, 16, 39);
  at::Tensor rows = centres.index_select(0, at::arange(1000, at::kLong).remainder(2)) + 0.6 * noise;
  rows = rows / rows.norm(2, 1, true);
  at::Tensor queries =
      at::cat({centres[0].unsqueeze(0) + 0.1 * unit_rows(9, 16, 40), centres[1].unsqueeze(0) + 0.9 * unit_rows(1, 16, 41)});
  queries = queries / queries.norm(2, 1, true);
  const auto source = rows_in_memory(rows);
  const auto of_second = [&](WithinTask within) {
    int64_t count = 0;
    for (const int64_t one : positions_of(pick_for_targets({{"t", queries}}, search_in(*source, 1), 100, within))) count += one % 2;
    return count;
  };
  EXPECT_GE(of_second(WithinTask::round_robin), 8);
  EXPECT_LT(of_second(WithinTask::max), of_second(WithinTask::round_robin));
}

// The index of vectors.

EmbeddingIndex::DigestOf digest_by(uint64_t salt) {
  return [salt](int64_t first, int64_t count) { return salt * 1000003 + static_cast<uint64_t>(first * 7919 + count); };
}

void fill(const EmbeddingIndex& index, const at::Tensor& rows, int64_t stop_after = -1) {
  for (size_t shard = 0; shard < index.shards().size(); ++shard) {
    if (index.is_complete(shard)) continue;
    auto writer = index.write(shard);
    const auto& [first, count] = index.shards()[shard];
    for (int64_t done = writer.done(); done < count; ++done) {
      if (stop_after-- == 0) return;
      writer.append(rows.narrow(0, first + done, 1));
    }
    writer.finish();
  }
}

at::Tensor as_kept(const at::Tensor& rows) {
  const at::Tensor narrow = rows.to(at::kHalf).to(at::kFloat);
  return narrow / narrow.norm(2, 1, true);
}

TEST(EmbeddingIndex, GoesOnWhereItStoppedAndGrows) {
  const harness::ScratchFolder scratch;
  const at::Tensor rows = unit_rows(300, 8, 51);
  const EmbeddingFacts facts{"m", "t", "mean", 8};
  fill(EmbeddingIndex(scratch / "index", facts, 250, digest_by(1), "--index"), rows, 100);
  const EmbeddingIndex again(scratch / "index", facts, 250, digest_by(1), "--index");
  int64_t there = 0;
  for (size_t shard = 0; shard < again.shards().size(); ++shard)
    there += again.is_complete(shard) ? again.shards()[shard].count : again.write(shard).done();
  EXPECT_EQ(there, 100) << "rows before the interruption are kept";
  EXPECT_THAT(refusal_of([&] { again.open(); }), HasSubstr("incomplete"));
  fill(again, rows);
  const at::Tensor all = again.open()->read(0, 250);
  EXPECT_TRUE(at::allclose(all, as_kept(rows.narrow(0, 0, 250)), 0, 1e-6));
  EXPECT_LT((all.norm(2, 1) - 1).abs().max().item<float>(), 1e-6f);
  const EmbeddingIndex grown(scratch / "index", facts, 300, digest_by(1), "--index");
  int64_t missing = 0;
  for (size_t shard = 0; shard < grown.shards().size(); ++shard)
    if (!grown.is_complete(shard)) missing += grown.shards()[shard].count - grown.write(shard).done();
  EXPECT_EQ(missing, 50);
  fill(grown, rows);
  EXPECT_TRUE(at::allclose(grown.open()->read(200, 100), as_kept(rows.narrow(0, 200, 100)), 0, 1e-6));
}

TEST(EmbeddingIndex, RefusesAnotherModelAndDamage) {
  const harness::ScratchFolder scratch;
  const at::Tensor rows = unit_rows(100, 8, 52);
  const EmbeddingIndex index(scratch / "index", {"m", "t", "mean", 8}, 100, digest_by(1), "--index");
  fill(index, rows);
  const auto opened = [&](const EmbeddingFacts& facts) {
    return refusal_of([&] { EmbeddingIndex(scratch / "index", facts, 100, digest_by(1), "--index"); });
  };
  EXPECT_THAT(opened({"other", "t", "mean", 8}), HasSubstr("made with another model (m, not other)"));
  EXPECT_THAT(opened({"m", "t", "last", 8}), HasSubstr("another pooling (mean, not last)"));
  EXPECT_THAT(opened({"m", "u", "mean", 8}), HasSubstr("another text"));
  const EmbeddingIndex other(scratch / "index", {"m", "t", "mean", 8}, 100, digest_by(2), "--index");
  EXPECT_FALSE(other.is_complete(0)) << "of other documents";
  std::fstream file(scratch / "index/rows-00000001.f16", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(60);
  file.put('x');
  file.close();
  EXPECT_THAT(refusal_of([&] { index.open(); }), HasSubstr("rows-00000001.f16: damaged"));
}

}  // namespace
}  // namespace cairn::data
