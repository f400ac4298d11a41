#include "data/samples/token_dataset.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "documents.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int64_t>;

std::shared_ptr<const TokenStream> counting(int64_t n) {
  TestDocument document{std::vector<int32_t>(static_cast<size_t>(n)), {}};
  std::iota(document.tokens.begin(), document.tokens.end(), 100);
  return row_of({document});
}

TokenDataset set_of(std::shared_ptr<const TokenStream> row, int64_t length, double held_out = 0, const std::string& packing = "stream") {
  std::vector<std::unique_ptr<TokenSamples>> sources;
  sources.push_back(
      make_samples(parse_packing(packing), std::move(row), {.length = length, .held_out_fraction = held_out, .padding = 7}, "a test"));
  return TokenDataset(std::move(sources), length);
}

TokenDataset set_of(int64_t tokens, int64_t length, double held_out = 0) { return set_of(counting(tokens), length, held_out); }

mesh::Batch all_of(const TokenDataset& set, const SampleRange& samples) {
  Ids ids(static_cast<size_t>(samples.count));
  std::iota(ids.begin(), ids.end(), samples.first);
  mesh::Batch batch;
  set.fill(ids, batch);
  return batch;
}

Ids field(const mesh::Batch& batch, const char* name) {
  const at::Tensor& values = batch.field(name);
  return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

TEST(TokenDataset, AsksForEveryTokenButTheFirstExactlyOnce) {
  for (const int64_t tokens : {5, 8, 9, 10, 12, 13, 101}) {
    const TokenDataset set = set_of(tokens, 4);
    const mesh::Batch batch = all_of(set, set.training());
    Ids asked;
    int64_t counted = 0;
    for (int64_t i = 0; i < set.samples(); ++i) counted += set.tokens_in(i);
    for (const int64_t target : field(batch, "targets"))
      if (target != kIgnoreIndex) asked.push_back(target);
    Ids expected(static_cast<size_t>(tokens - 1));
    std::iota(expected.begin(), expected.end(), 101);
    EXPECT_EQ(asked, expected) << tokens;
    EXPECT_EQ(counted, tokens - 1) << tokens;
    EXPECT_FALSE(batch.fields.contains("documents"));
  }
}

TEST(TokenDataset, FillsSamplesByIdAndPadsTheLast) {
  const TokenDataset set = set_of(7, 4);  // targets: 4, then 2
  mesh::Batch batch;
  set.fill(Ids{1, 0, 1}, batch);
  EXPECT_TRUE(at::equal(batch.ids, at::tensor({1, 0, 1}, at::kLong)));
  EXPECT_THAT(field(batch, "tokens"), ElementsAre(104, 105, 7, 7, 100, 101, 102, 103, 104, 105, 7, 7));
  EXPECT_THAT(field(batch, "targets"), ElementsAre(105, 106, -100, -100, 101, 102, 103, 104, 105, 106, -100, -100));
  EXPECT_EQ(set.tokens_in(0), 4);
  EXPECT_EQ(set.tokens_in(1), 2);
}

TEST(TokenDataset, FillsAnEmptyShareWithAnEmptyBatch) {
  for (const std::string& packing : packing_names()) {
    const bool ragged = packing == "sequences";
    mesh::Batch batch;
    set_of(counting(7), ragged ? 6 : 4, 0, packing).fill({}, batch);
    EXPECT_EQ(batch.samples(), 0);
    EXPECT_EQ(batch.field("tokens").sizes(), ragged ? at::IntArrayRef{0} : (at::IntArrayRef{0, 4}));
  }
}

TEST(TokenDataset, HoldsOutTheEndOfTheCorpus) {
  EXPECT_EQ(set_of(101, 4).held_out(), (SampleRange{25, 0}));
  EXPECT_EQ(set_of(101, 4, 0.2).training(), (SampleRange{0, 20}));
  EXPECT_EQ(set_of(101, 4, 0.2).held_out(), (SampleRange{20, 5}));
  EXPECT_EQ(set_of(101, 4, 1e-9).held_out(), (SampleRange{24, 1}));
  EXPECT_EQ(set_of(9, 4, 0.99).held_out(), (SampleRange{1, 1}));
}

TEST(TokenDataset, RefusesACorpusTooSmallForItsSamples) {
  EXPECT_EQ(set_of(5, 4).samples(), 1);
  EXPECT_EQ(refusal([] { set_of(4, 4); }),
            "a test: 4 tokens are too few; one sample of data.length = 4 needs 5: give more text or set data.length to 3 or less");
  EXPECT_EQ(set_of(9, 4, 0.1).samples(), 2);
  EXPECT_EQ(refusal([] { set_of(8, 4, 0.1); }),
            "a test: 8 tokens are too few; a training sample and a held-out sample of data.length = 4 needs 9: give more text or set "
            "data.length to 3 or less");
  EXPECT_EQ(refusal([] { set_of(counting(9), 4, 0, "steam"); }), "unknown data.packing \"steam\": did you mean \"stream\"?");
}

TEST(Separate, MarksDocumentsAndNeverAsksAcrossThem) {
  const auto row = row_of({{{1, 2, 9}}, {{3, 9}}, {{4, 5, 6, 7, 9}}});
  const TokenDataset set = set_of(row, 4, 0, "separate");
  const mesh::Batch batch = all_of(set, set.training());
  EXPECT_THAT(field(batch, "tokens"), ElementsAre(1, 2, 9, 3, 9, 4, 5, 6, 7, 7, 7, 7));
  EXPECT_THAT(field(batch, "targets"), ElementsAre(2, 9, -100, 9, -100, 5, 6, 7, 9, -100, -100, -100));
  EXPECT_THAT(field(batch, "documents"), ElementsAre(0, 0, 0, 1, 1, 2, 2, 2, 2, -1, -1, -1));
  EXPECT_THAT(field(batch, "positions"), ElementsAre(0, 1, 2, 0, 0, 0, 1, 2, 0, 0, 0, 0));
  EXPECT_EQ(set.tokens_in(0), 3);
  EXPECT_EQ(set.tokens_in(1), 3);
  EXPECT_EQ(set.tokens_in(2), 1);
}

TEST(Packed, PutsWholeDocumentsIntoSamples) {
  // Reading 3, 5, 1, 3 and 2 of length 4: the second is cut after 4.
  const auto row = row_of({{{1, 2, 3, 9}}, {{11, 12, 13, 14, 15, 9}}, {{21, 9}}, {{31, 32, 33, 9}}, {{41, 42, 9}}});
  const TokenDataset set = set_of(row, 4, 0, "documents");
  const mesh::Batch batch = all_of(set, set.training());
  ASSERT_EQ(set.samples(), 4);
  EXPECT_THAT(field(batch, "tokens"), ElementsAre(1, 2, 3, 15, 11, 12, 13, 14, 21, 31, 32, 33, 41, 42, 7, 7));
  EXPECT_THAT(field(batch, "targets"), ElementsAre(2, 3, 9, 9, 12, 13, 14, 15, 9, 32, 33, 9, 42, 9, -100, -100));
  EXPECT_THAT(field(batch, "documents"), ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 4, 4, -1, -1));
  EXPECT_THAT(field(batch, "positions"), ElementsAre(0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1, 2, 0, 1, 0, 0));
  EXPECT_EQ(set.tokens_in(3), 2);
}

TEST(Unpacked, GivesEachDocumentASampleOfItsOwn) {
  const auto row = row_of({{{1, 2, 9}}, {{9}}, {{3, 4, 5, 6, 9}}});
  const TokenDataset set = set_of(row, 3, 0, "none");
  EXPECT_THAT(field(all_of(set, set.training()), "tokens"), ElementsAre(1, 2, 7, 3, 4, 5, 6, 7, 7));
}

std::vector<TestDocument> random_documents(int64_t count, int64_t longest, bool masked, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TestDocument> documents;
  for (int64_t i = 0; i < count; ++i) {
    TestDocument document;
    const auto size = static_cast<int64_t>(1 + random() % static_cast<uint32_t>(longest));
    for (int64_t k = 0; k < size; ++k) document.tokens.push_back(static_cast<int32_t>(random() % 60000));
    for (int64_t k = 0; masked && k < size; ++k) document.targets.push_back(random() % 3 == 0);
    documents.push_back(document);
  }
  return documents;
}

TEST(Packed, AsksForTheSameAsTheDocumentsOneByOne) {
  for (const bool masked : {false, true}) {
    for (const int64_t length : {1, 7, 64, 101}) {
      const auto row = row_of(random_documents(200, 150, masked, 5), 60000);
      std::multiset<std::vector<int64_t>> asked[2];  // (document, position or place in it, token, target)
      int64_t padded[2] = {};
      for (const bool pack : {false, true}) {
        const TokenDataset set = set_of(row, length, 0, pack ? "documents" : "none");
        const mesh::Batch batch = all_of(set, set.training());
        const Ids tokens = field(batch, "tokens"), targets = field(batch, "targets"), documents = field(batch, "documents"),
                  positions = field(batch, "positions");
        for (int64_t sample = 0; sample < set.samples(); ++sample) {
          int64_t count = 0;
          for (auto i = static_cast<size_t>(sample * length); i < static_cast<size_t>((sample + 1) * length); ++i) {
            padded[pack] += documents[i] == -1;
            if (targets[i] == kIgnoreIndex) continue;
            ++count;
            asked[pack].insert({documents[i], positions[i], tokens[i], targets[i]});
          }
          EXPECT_EQ(set.tokens_in(sample), count);
          EXPECT_GT(count, 0);
        }
      }
      EXPECT_EQ(asked[0], asked[1]) << length << masked;
      EXPECT_LE(padded[1], padded[0]);
      int64_t expected = 0;
      for (int64_t document = 0; document < row->documents(); ++document)
        expected +=
            row->targets_in(row->document_begin(document) + 1, row->document_begin(document + 1) - row->document_begin(document) - 1);
      EXPECT_EQ(static_cast<int64_t>(asked[1].size()), expected);
    }
  }
}

TEST(Packed, NeverHasADocumentOnBothSides) {
  for (const double fraction : {1e-9, 0.1, 0.5, 0.99}) {
    for (const int64_t count : {2, 3, 50}) {
      const auto row = row_of(random_documents(count, 40, false, 9), 60000);
      const TokenDataset set = set_of(row, 16, fraction, "documents");
      std::set<int64_t> sides[2];
      for (const int side : {0, 1})
        for (const int64_t document : field(all_of(set, side == 0 ? set.training() : set.held_out()), "documents"))
          if (document >= 0) sides[side].insert(document);
      EXPECT_FALSE(sides[0].empty());
      EXPECT_FALSE(sides[1].empty());
      EXPECT_LT(*sides[0].rbegin(), *sides[1].begin());
    }
  }
}

TEST(Packed, RefusesWhatCannotBeDivided) {
  EXPECT_EQ(refusal([] { set_of(row_of({}), 4, 0, "documents"); }), "a test: it holds no document with text in it");
  EXPECT_EQ(refusal([] { set_of(counting(9), 4, 0.1, "documents"); }),
            "a test: one document cannot be divided into a training and a held-out part; give more documents (in a text they end with "
            "<|endoftext|>), or set data.packing to stream");
  EXPECT_EQ(refusal([] {
              set_of(row_of({{{1}}, {{2}}}), 4, 0.1, "documents");
            }),
            "a test: its 2 documents have no targets in the training part; give longer or more documents");
}

TEST(Sequences, AreWholeDocumentsAsLongAsTheyAre) {
  // The document of one token has no target, and is left out.
  const TokenDataset set = set_of(row_of({{{1, 2, 3}}, {{9}}, {{4, 5, 6, 7, 8}}, {{10, 11}, {1, 0}}, {{12, 13}}}), 4, 0, "sequences");
  ASSERT_EQ(set.samples(), 3);  // the last token of the fourth is no target
  EXPECT_EQ(set.length_of(0), 2);
  EXPECT_EQ(set.length_of(1), 4);
  EXPECT_EQ(set.tokens_in(1), 4);
  const std::vector<int64_t> ids{1, 0, 1};
  mesh::Batch batch;
  set.fill(ids, batch);
  EXPECT_THAT(field(batch, "lengths"), ElementsAre(4, 2, 4));
  EXPECT_THAT(field(batch, "tokens"), ElementsAre(4, 5, 6, 7, 1, 2, 4, 5, 6, 7));
  EXPECT_THAT(field(batch, "targets"), ElementsAre(5, 6, 7, 8, 2, 3, 5, 6, 7, 8));
  EXPECT_EQ(batch.fields.count("documents"), 0U);
  set.fill({}, batch);
  EXPECT_EQ(batch.samples(), 0);
  EXPECT_EQ(refusal([] { set_of(counting(9), 7, 0, "sequences"); }),
            "data.length = 7: a test has a document of 8 tokens, and data.packing = sequences cuts none. Set data.length to at least 8.");
}

TEST(Sequences, HoldOutTheLastDocuments) {
  const TokenDataset set = set_of(row_of(random_documents(50, 40, false, 9), 60000), 64, 0.2, "sequences");
  EXPECT_GT(set.held_out().count, 0);
  EXPECT_GT(set.training().count, set.held_out().count);
}

TEST(TokenDataset, CountsTheSamplesOfSeveralSourcesThroughHeldOutLast) {
  std::vector<std::unique_ptr<TokenSamples>> sources;
  for (const int64_t tokens : {9, 21, 13})
    sources.push_back(make_samples(Packing::stream, counting(tokens), {.length = 4, .held_out_fraction = 0.2, .padding = 7}, "a test"));
  const TokenDataset set(std::move(sources), 4);  // 1 + 1, 4 + 1, 2 + 1
  EXPECT_EQ(set.training(), (SampleRange{0, 7}));
  EXPECT_EQ(set.held_out(), (SampleRange{7, 3}));
  EXPECT_EQ(set.training_of(1), (SampleRange{1, 4}));
  const mesh::Batch batch = all_of(set, {0, 10});
  std::vector<int64_t> firsts;
  for (int64_t i = 0; i < 10; ++i) firsts.push_back(batch.field("tokens")[i][0].item<int64_t>());
  EXPECT_THAT(firsts, ElementsAre(100, 100, 104, 108, 112, 100, 104, 104, 116, 108));
}

}  // namespace
}  // namespace cairn::data
