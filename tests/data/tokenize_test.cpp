#include "data/tokenize.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "data/bpe_tokenizer.h"
#include "data/bpe_trainer.h"
#include "data/byte_tokenizer.h"

namespace cairn::data {
namespace {

Documents one_document(std::string text) {
  Documents documents{.origin = "a test", .text = std::move(text), .spans = {}};
  documents.spans.push_back({0, static_cast<int64_t>(documents.text.size())});
  return documents;
}

std::unique_ptr<Tokenizer> story_tokenizer(const Documents& documents) {
  const std::string_view text = documents.text;
  return make_bpe_tokenizer(train_bpe(std::span(&text, 1), {.vocab = 500}));
}

TEST(Tokenize, EndsEachDocument) {
  const Documents documents{.origin = "a test", .text = "ab--c", .spans = {{0, 2}, {4, 5}}};
  EXPECT_EQ(tokenize(documents, *make_byte_tokenizer()), (std::vector<int32_t>{'a', 'b', 256, 'c', 256}));
}

TEST(Tokenize, GivesTheSameIdsForAnyChunksAndThreads) {
  const Documents stories = tell_stories(2, 30000);
  const auto tokenizer = story_tokenizer(stories);
  std::vector<int32_t> plain;
  for (int64_t i = 0; i < stories.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer->encode(stories[i]);
    plain.insert(plain.end(), ids.begin(), ids.end());
    plain.push_back(tokenizer->end_of_text());
  }
  for (const int64_t chunk_bytes : {1, 7, 997, 30001})
    for (const int threads : {1, 2, 5})
      EXPECT_EQ(tokenize(stories, *tokenizer, {.threads = threads, .chunk_bytes = chunk_bytes, .progress = {}}), plain) << chunk_bytes;
}

TEST(Tokenize, CutsOneLongDocumentOnlyWhereIdsDoNotChange) {
  const Documents document = one_document("  a\n\n\n b   c's\t\td " + tell_stories(2, 5000).text + "   ");
  const auto tokenizer = story_tokenizer(document);
  std::vector<int32_t> plain = tokenizer->encode(document[0]);
  plain.push_back(tokenizer->end_of_text());
  for (const int64_t chunk_bytes : {1, 2, 3, 5, 100}) {
    EXPECT_EQ(tokenize(document, *tokenizer, {.threads = 2, .chunk_bytes = chunk_bytes, .progress = {}}), plain) << chunk_bytes;
  }
}

TEST(Tokenize, TellsHowFarItIs) {
  const Documents stories = tell_stories(2, 20000);
  std::vector<int64_t> seen;
  tokenize(stories, *make_byte_tokenizer(), {.threads = 2, .chunk_bytes = 4000, .progress = [&](int64_t bytes, int64_t of) {
                                               EXPECT_EQ(of, static_cast<int64_t>(stories.text.size()));
                                               seen.push_back(bytes);
                                             }});
  EXPECT_GE(seen.size(), 5u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), static_cast<int64_t>(stories.text.size()));
}

class Failing final : public Tokenizer {
 public:
  void encode(std::string_view, const EncodeOptions&, std::vector<int32_t>&) const override { base::fail_input("no luck"); }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::string piece(int32_t) const override { return ""; }
  int64_t vocab_size() const override { return 1; }
  std::optional<int32_t> id_of(std::string_view) const override { return 0; }
  bool is_special(int32_t) const override { return false; }
  bool is_border(char, char after) const override { return after == ' '; }
  std::string json() const override { return ""; }
};

TEST(Tokenize, CarriesAThreadsFailureToTheCaller) {
  EXPECT_THROW(tokenize(tell_stories(2, 20000), Failing(), {.threads = 3, .chunk_bytes = 1000, .progress = {}}), Error);
}

}  // namespace
}  // namespace cairn::data
