#include "data/corpus/token_file.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "data/corpus/llmc_file.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string file_of(const std::vector<TestDocument>& documents, int64_t vocab, const TokenFacts& facts = {}) {
  std::string bytes;
  TokenWriter writer([&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
                     vocab);
  for (const TestDocument& document : documents) {
    const std::vector<int64_t> ends = {static_cast<int64_t>(document.tokens.size())};
    writer.add(document.tokens, ends, document.targets);
  }
  writer.finish(facts);
  return bytes;
}

TEST(TokenFile, GivesBackWhatWasWritten) {
  const Scratch scratch;
  const TokenFacts facts{.tokenizer = 5, .key = 9, .vocab = 300, .text_bytes = 77, .bad_lines = 2};
  for (const int64_t vocab : {int64_t{300}, int64_t{65536}, int64_t{65537}}) {
    TokenFacts expected = facts;
    expected.vocab = vocab;
    const TokenShard tokens = open_token_file(scratch.write("x.tokens", file_of({{{1, 2, 3}}, {{4}}, {{299, 0}}}, vocab, facts)));
    EXPECT_EQ(tokens.facts, expected);
    EXPECT_THAT(tokens.begins, ElementsAre(0, 3, 4));
    EXPECT_TRUE(tokens.targets.empty());
    EXPECT_EQ(tokens.narrow.empty(), vocab > 65536);
    EXPECT_THAT(ids_of(TokenStream({tokens})), ElementsAre(1, 2, 3, 4, 299, 0));
  }
}

TEST(TokenFile, KeepsOneBitForEachTokenOnceOneIsNoTarget) {
  std::mt19937 random(7);
  for (const size_t plain : {0, 1, 63, 64, 65, 130}) {
    std::vector<TestDocument> documents;
    std::vector<uint8_t> expected(plain, 1);
    if (plain > 0) documents.push_back({std::vector<int32_t>(plain, 3)});
    for (const size_t size : {1, 64, 7, 128, 61}) {
      TestDocument document{std::vector<int32_t>(size, 4), {}};
      for (size_t i = 0; i < size; ++i) document.targets.push_back(static_cast<uint8_t>(random() % 2));
      expected.insert(expected.end(), document.targets.begin(), document.targets.end());
      documents.push_back(document);
      documents.push_back({{5, 5, 5}});  // and plain ones between
      expected.insert(expected.end(), 3, 1);
    }
    const auto row = row_of(documents);
    ASSERT_EQ(row->size(), static_cast<int64_t>(expected.size()));
    std::vector<int64_t> targets(expected.size(), 0);
    row->mask_non_targets(0, row->size(), targets.data());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(targets[i] == 0, expected[i] == 1) << i;
    for (const int64_t first : {0, 1, 63, 64})
      for (const int64_t count : {0, 1, 2, 63, 64, 65, 100})
        EXPECT_EQ(row->targets_in(first, count), std::count(expected.begin() + first, expected.begin() + first + count, 1))
            << first << " " << count;
  }
}

TEST(TokenFile, LetsADocumentComeInPieces) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  TokenWriter writer([&](std::span<const std::byte> more) { bytes->insert(bytes->end(), more.begin(), more.end()); }, 10);
  const auto add = [&](const std::vector<int32_t>& tokens, const std::vector<int64_t>& ends) { writer.add(tokens, ends, {}); };
  add({1, 2}, {});
  add({}, {});
  add({3}, {});
  add({4, 5, 6}, {1, 2});
  add({7}, {1});
  add({8}, {});
  writer.finish({});
  EXPECT_THAT(read_tokens(*bytes, bytes, "a test").begins, ElementsAre(0, 4, 5, 7));
}

TEST(TokenFile, IsRefusedWhereverItIsDamagedOrCut) {
  const Scratch scratch;
  const std::string good = file_of({{{1, 2, 3}, {1, 0, 1}}, {{4, 5}}}, 300);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_THAT(refusal([&] { open_token_file(scratch.write("bad.tokens", bad)); }), HasSubstr("bad.tokens: a damaged token file: ")) << i;
    EXPECT_THAT(refusal([&] { open_token_file(scratch.write("cut.tokens", good.substr(0, i))); }), HasSubstr("cut.tokens")) << i;
  }
  EXPECT_THAT(refusal([&] { open_token_file(scratch.write("x", "hello")); }), HasSubstr("it does not begin with \"cairntk1\""));
  EXPECT_THAT(refusal([&] { open_token_file(scratch.write("x", good + good)); }), HasSubstr("bytes, and its footer speaks of"));
}

// A file whose checksum is right and whose content lies.
std::string forged(std::string bytes, size_t from_end, uint64_t value) {
  std::memcpy(bytes.data() + bytes.size() - from_end, &value, sizeof value);
  const uint64_t sum = base::checksum(std::string_view(bytes).substr(0, bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
  return bytes;
}

TEST(TokenFile, IsRefusedWhereItsNumbersCannotBe) {
  const Scratch scratch;
  const std::string good = file_of({{{1, 2, 3}, {1, 0, 1}}, {{4, 5}}}, 300);
  const auto says = [&](size_t from_end, uint64_t value) {
    return refusal([&] { open_token_file(scratch.write("x.tokens", forged(good, from_end, value))); });
  };
  EXPECT_THAT(says(88, ~uint64_t{0}), HasSubstr("a count in it is absurd"));       // tokens
  EXPECT_THAT(says(88, 9), HasSubstr("its footer speaks of"));                     // tokens
  EXPECT_THAT(says(64, 4), HasSubstr("ids of 4 bytes and a vocabulary of 300"));   // token_bytes
  EXPECT_THAT(says(56, 5), HasSubstr("an id is not below its vocabulary of 5"));   // vocab
  EXPECT_THAT(says(56, 0), HasSubstr("a vocabulary of 0"));                        // vocab
  EXPECT_THAT(says(88 + 8 + 16, 1), HasSubstr("its documents are out of order"));  // begins[0]
  EXPECT_THAT(says(88 + 8 + 8, 5), HasSubstr("its documents are out of order"));   // begins[1], past the end
}

TEST(LlmcFile, IsReadInBothWidths) {
  const Scratch scratch;
  for (const int64_t vocab : {int64_t{1000}, int64_t{100000}}) {
    const std::string path = scratch.write("x.bin", llmc_bytes(tokens_in_memory({{{9, 1, 2}}, {{9, 3}}, {{9}}}, vocab)));
    const TokenShard tokens = open_llmc_file(path, vocab, 9);
    EXPECT_EQ(tokens.narrow.empty(), vocab > 65536);
    EXPECT_THAT(ids_of(TokenStream({tokens})), ElementsAre(9, 1, 2, 9, 3, 9));
    EXPECT_THAT(tokens.begins, ElementsAre(0, 1, 4));
  }
}

TEST(LlmcFile, IsRefusedWhereHeaderAndContentDisagree) {
  const Scratch scratch;
  const std::string good = llmc_bytes(tokens_in_memory({{{9, 1, 2}}}));
  const auto says = [&](const std::string& bytes, int64_t vocab = 10) {
    return refusal([&] { open_llmc_file(scratch.write("x.bin", bytes), vocab, 9); });
  };
  const auto with = [&](size_t slot, int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * slot, &value, sizeof value);
    return bytes;
  };
  EXPECT_THAT(says("text"), HasSubstr("x.bin: not a token shard of llm.c: it does not begin with 20240520 or 20240801"));
  EXPECT_THAT(says(good.substr(0, 100)), HasSubstr("x.bin: a damaged token shard: its header is cut short"));
  EXPECT_THAT(says(good.substr(0, good.size() - 1)), HasSubstr("its header speaks of 3 tokens, that is 1030 bytes, and it has 1029"));
  EXPECT_THAT(says(with(2, -3)), HasSubstr("its header speaks of -3 tokens"));
  EXPECT_THAT(says(with(2, 0)), HasSubstr("its header speaks of 0 tokens"));
  EXPECT_THAT(says(with(1, 2)), HasSubstr("a token shard of llm.c of version 2; with magic 20240520, version 1 is read"));
  EXPECT_THAT(says(good, 9), HasSubstr("it holds id 9, and the tokenizer has ids 0 to 8; set data.tokenizer_file"));
}

TEST(TokenStream, RunsThroughAllFiles) {
  const TokenStream row(
      {tokens_in_memory({{{1, 2, 3}}, {{4}}}), tokens_in_memory({{{5}}}, 100000), tokens_in_memory({{{6, 7}, {0, 1}}, {{8}}})});
  EXPECT_EQ(row.size(), 8);
  EXPECT_EQ(row.documents(), 5);
  EXPECT_TRUE(row.masked());
  std::vector<int64_t> begins;
  for (int64_t document = 0; document <= 5; ++document) begins.push_back(row.document_begin(document));
  EXPECT_THAT(begins, ElementsAre(0, 3, 4, 5, 7, 8));
  std::vector<int64_t> owners;
  for (int64_t token = 0; token < 8; ++token) owners.push_back(row.document_of(token));
  EXPECT_THAT(owners, ElementsAre(0, 0, 0, 1, 2, 3, 3, 4));
  for (int64_t first = 0; first < 8; ++first) {
    for (int64_t count = 0; first + count <= 8; ++count) {
      std::vector<int64_t> copied(static_cast<size_t>(count));
      row.copy(first, count, copied.data());
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(copied[static_cast<size_t>(i)], first + i + 1);
      EXPECT_EQ(row.targets_in(first, count), count - (first <= 5 && 5 < first + count ? 1 : 0));
    }
  }
}

}  // namespace
}  // namespace cairn::data
