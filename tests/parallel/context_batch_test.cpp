#include "parallel/batch/context_batch.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

using mesh::Field;
using mesh::Interval;
using model::ContextSplit;

// Two samples of numbers that tell sample and position.
mesh::Batch numbered(int64_t length) {
  mesh::Batch batch;
  batch.ids = at::arange(7, 9);
  batch.weights = at::ones({2});
  batch.progress = 0.25;
  const at::Tensor tokens = at::arange(2 * length).view({2, length});
  batch.fields["tokens"] = {tokens};
  batch.fields["targets"] = {tokens + 1};
  batch.fields["labels"] = {at::arange(2)};
  batch.fields["reference"] = {at::arange(length), Field::Shape::whole};
  return batch;
}

std::vector<int64_t> positions_of(const ContextSplit& split, int coordinate) {
  std::vector<int64_t> positions;
  for (const Interval& piece : split.pieces[static_cast<size_t>(coordinate)])
    for (int64_t at = piece.begin; at < piece.end; ++at) positions.push_back(at);
  return positions;
}

// (query, key) pairs of a causal mask whose query the coordinate holds, counted one by one.
int64_t causal_pairs(const ContextSplit& split, int coordinate) {
  int64_t pairs = 0;
  for (const int64_t query : positions_of(split, coordinate))
    for (int64_t key = 0; key < split.length; ++key) pairs += key <= query ? 1 : 0;
  return pairs;
}

double causal_imbalance(const ContextSplit& split) {
  std::vector<int64_t> pairs;
  for (int c = 0; c < static_cast<int>(split.pieces.size()); ++c) pairs.push_back(causal_pairs(split, c));
  const double mean = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), int64_t{0})) / static_cast<double>(pairs.size());
  return static_cast<double>(*std::max_element(pairs.begin(), pairs.end())) / mean;
}

// A sample of two rows (a pair of answers) is cut like two samples; slices keep a sample's rows together.
TEST(CutContext, CutsSamplesOfSeveralRows) {
  mesh::Batch pairs;
  pairs.ids = at::arange(3);
  const at::Tensor tokens = at::arange(6 * 5).view({6, 5});
  pairs.fields["tokens"] = {tokens, Field::Shape::rows};
  pairs.fields["reference"] = {at::arange(6), Field::Shape::whole};
  const mesh::Batch last = mesh::slice(pairs, 1, 3);
  EXPECT_TRUE(at::equal(last.field("tokens"), tokens.slice(0, 2, 6)));
  const mesh::Batch part = cut_context(last, make_context_split(5, 2, /*balanced=*/false), 1);
  EXPECT_TRUE(at::equal(part.field("tokens"), tokens.slice(0, 2, 6).slice(1, 3, 5)));
  EXPECT_TRUE(at::equal(part.field("positions"), at::arange(3, 5).unsqueeze(0).expand({4, 2})));
  EXPECT_TRUE(at::equal(part.field("reference"), at::arange(6)));
}

std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "no error";
}

TEST(ContextBatch, SplitsEveryPositionOnce) {
  for (const int parts : {1, 2, 3, 4, 5})
    for (const int64_t length : {0, 1, 2, 3, 7, 8, 13, 40})
      for (const bool balanced : {false, true}) {
        const ContextSplit split = make_context_split(length, parts, balanced);
        model::check(split, parts);
        std::vector<int64_t> all;
        for (int c = 0; c < parts; ++c) {
          const std::vector<int64_t> held = positions_of(split, c);
          EXPECT_EQ(static_cast<int64_t>(held.size()), model::held(split, c));
          all.insert(all.end(), held.begin(), held.end());
        }
        std::sort(all.begin(), all.end());
        std::vector<int64_t> expected(static_cast<size_t>(length));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(all, expected) << length << " over " << parts;
      }
  EXPECT_EQ(make_context_split(10, 2, true).pieces, (std::vector<std::vector<Interval>>{{{0, 3}, {8, 10}}, {{3, 6}, {6, 8}}}));
  EXPECT_EQ(make_context_split(10, 3, false).pieces, (std::vector<std::vector<Interval>>{{{0, 4}}, {{4, 7}}, {{7, 10}}}));
}

TEST(ContextBatch, BalancesTheWorkOfACausalMask) {
  for (const int parts : {2, 3, 4, 5, 8}) {
    const int64_t even = 24 * parts, odd = 24 * parts + 7;
    EXPECT_EQ(causal_imbalance(make_context_split(even, parts, true)), 1) << parts;
    EXPECT_LT(causal_imbalance(make_context_split(odd, parts, true)), 1.05) << parts;
    // The last of n has n - 1/2 of n * n / 2 squares.
    EXPECT_NEAR(causal_imbalance(make_context_split(even, parts, false)), 2 - 1.0 / parts, 0.02) << parts;
  }
}

TEST(ContextBatch, CutsWhatHasPositionsAndLeavesTheRest) {
  for (const bool balanced : {false, true}) {
    const mesh::Batch whole = numbered(11);
    const ContextSplit split = make_context_split(11, 3, balanced);
    for (int c = 0; c < 3; ++c) {
      const mesh::Batch part = cut_context(whole, split, c);
      const at::Tensor held = at::tensor(positions_of(split, c));
      EXPECT_TRUE(at::equal(part.field("tokens"), whole.field("tokens").index_select(1, held)));
      EXPECT_TRUE(at::equal(part.field("targets"), whole.field("targets").index_select(1, held)));
      EXPECT_TRUE(at::equal(part.field("positions"), held.unsqueeze(0).expand({2, -1})));
      EXPECT_TRUE(part.field("tokens").is_contiguous() && part.field("positions").is_contiguous());
      EXPECT_TRUE(at::equal(part.field("labels"), whole.field("labels")));
      EXPECT_TRUE(at::equal(part.field("reference"), whole.field("reference")));
      EXPECT_TRUE(part.ids.is_same(whole.ids) && part.weights.is_same(whole.weights));
      EXPECT_EQ(part.progress, 0.25);
    }
  }
}

TEST(ContextBatch, CutsPositionsThatTheBatchHas) {
  mesh::Batch whole = numbered(6);
  whole.fields["positions"] = {at::tensor({0, 1, 2, 0, 1, 0, 0, 1, 0, 1, 2, 3}, at::kLong).view({2, 6})};
  const mesh::Batch part = cut_context(whole, {6, {{{0, 1}, {4, 6}}, {{1, 4}}}}, 0);
  EXPECT_TRUE(at::equal(part.field("positions"), at::tensor({0, 1, 0, 0, 2, 3}, at::kLong).view({2, 3})));
}

TEST(ContextBatch, GivesEmptyRowsWhereThereAreMoreRanksThanPositions) {
  const ContextSplit split = make_context_split(2, 3, true);
  const mesh::Batch part = cut_context(numbered(2), split, 2);
  EXPECT_EQ(part.field("tokens").sizes(), (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(part.field("positions").sizes(), (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(cut_context(numbered(2), split, 1).field("tokens")[1].item<int64_t>(), 3);
}

TEST(ContextBatch, RefusesWhatCannotBeCut) {
  const ContextSplit split = make_context_split(6, 2, true);
  EXPECT_NE(refusal_of([&] {
              cut_context(numbered(5), split, 0);
            }).find("no field of the batch has 2 samples of 6 positions (there are \"labels\" [2], \"reference\" [5], \"targets\" [2, 5]"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { cut_context(numbered(6), split, 2); }).find("coordinate 2 of a context split over 2 ranks"),
            std::string::npos);
  mesh::Batch ragged = numbered(6);
  ragged.fields["tokens"].shape = Field::Shape::ragged;
  EXPECT_NE(refusal_of([&] { cut_context(ragged, split, 0); }).find("field \"tokens\" is ragged"), std::string::npos);
  EXPECT_NE(refusal_of([&] { make_context_split(4, 0, true); }).find("4 positions over 0 ranks"), std::string::npos);
  EXPECT_NE(refusal_of([&] {
              cut_context(numbered(6), {6, {{{0, 3}}, {{4, 6}}}}, 0);
            }).find("begins at 4 where the pieces before it end at 3"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::parallel
