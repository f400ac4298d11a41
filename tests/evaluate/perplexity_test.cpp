#include "evaluate/perplexity.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/documents.h"
#include "evaluate/refused.h"
#include "evaluate/small_model.h"
#include "evaluate/token_losses.h"

namespace cairn::evaluate {
namespace {

using testing::HasSubstr;

data::TestDocument document(const std::string& text) {
  data::TestDocument made;
  for (const char c : text) made.tokens.push_back(static_cast<uint8_t>(c));
  made.tokens.push_back(256);
  return made;
}

std::shared_ptr<const data::TokenStream> rows(const std::vector<std::string>& texts) {
  std::vector<data::TestDocument> documents;
  for (const std::string& text : texts) documents.push_back(document(text));
  return data::row_of(documents, 257);
}

double sum_of(const std::vector<double>& logs, size_t first = 0) {
  return -std::accumulate(logs.begin() + static_cast<std::ptrdiff_t>(first), logs.end(), 0.0);
}

TEST(TokenLosses, AreThoseOfEachRowByItself) {
  SmallModel small;
  const EvaluatedModel evaluated = small.evaluated();
  const std::vector<ScoredTokens> scored{{{256, 1, 2, 3, 4, 5, 6}, 1}, {{9, 8}, 1}, {{7, 7, 7, 7}, 3}};
  const std::vector<std::vector<float>> found = token_losses(evaluated, scored);
  ASSERT_EQ(found.size(), 3u);
  for (size_t r = 0; r < scored.size(); ++r) {
    const std::vector<double> expected = small.log_probabilities(scored[r].tokens);
    ASSERT_EQ(found[r].size(), scored[r].tokens.size() - static_cast<size_t>(scored[r].first));
    for (size_t i = 0; i < found[r].size(); ++i)
      EXPECT_NEAR(found[r][i], -expected[i + static_cast<size_t>(scored[r].first) - 1], 1e-5) << r << ", " << i;
  }
}

TEST(Perplexity, IsOneSumOverAllDocumentsEachByItself) {
  SmallModel small;
  const std::vector<std::string> texts{"A first one.", "b", "", "And a third."};
  double loss = 0;
  int64_t bytes = 0;
  for (const std::string& text : texts) {
    std::vector<int32_t> tokens{256};
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    loss += sum_of(small.log_probabilities(tokens));
    bytes += static_cast<int64_t>(text.size());
  }
  std::vector<TextLoss> each;
  const TextLoss found = perplexity(small.evaluated(), *rows(texts), {}, [&](const TextLoss& one) { each.push_back(one); });
  EXPECT_EQ(found.documents, 4);
  EXPECT_EQ(found.tokens, bytes);  // a token is a byte, and the ends of documents do not count
  EXPECT_EQ(found.bytes, bytes);
  EXPECT_NEAR(found.loss, loss, 1e-4);
  EXPECT_NEAR(found.perplexity(), std::exp(loss / static_cast<double>(bytes)), 1e-3);
  EXPECT_NEAR(found.bits_per_byte(), loss / std::log(2.0) / static_cast<double>(bytes), 1e-5);
  ASSERT_EQ(each.size(), 4u);
  EXPECT_EQ(each[1].tokens, 1);
  EXPECT_EQ(each[2].tokens, 0);
}

// Chunks see nothing of the chunk before but its last token; a stride gives the tokens more to go by.
TEST(Perplexity, ReadsLongDocumentsInWindows) {
  SmallModel small;
  const std::string text = "The quick brown fox jumps over the lazy dog and on.";
  std::vector<int32_t> all{256};
  for (const char c : text) all.push_back(static_cast<uint8_t>(c));
  const auto loss_of = [&](int64_t window, int64_t stride) {
    double loss = 0;
    for (int64_t first = 0, done = 1; done < static_cast<int64_t>(all.size()); first += stride) {
      const int64_t end = std::min(static_cast<int64_t>(all.size()), first + window + 1);
      const std::vector<double> logs = small.log_probabilities({all.begin() + first, all.begin() + end});
      loss += sum_of(logs, static_cast<size_t>(done - first - 1));
      done = end;
    }
    return loss;
  };
  for (const auto& [window, stride] : {std::pair<int64_t, int64_t>{24, 24}, {24, 12}, {7, 7}, {7, 1}, {1, 1}, {24, 5}}) {
    const TextLoss found = perplexity(small.evaluated(), *rows({text}), {.window = window, .stride = stride, .batch = 3});
    EXPECT_EQ(found.tokens, static_cast<int64_t>(text.size()));
    EXPECT_NEAR(found.loss, loss_of(window, stride), 2e-4) << window << ", " << stride;
  }
  EXPECT_NEAR(perplexity(small.evaluated(), *rows({text}), {}).loss, loss_of(24, 24), 2e-4)
      << "without options: chunks of what the model reads";
}

TEST(Perplexity, IsTheSameForAnyBatch) {
  SmallModel small;
  std::vector<std::string> texts;
  for (int i = 0; i < 37; ++i) texts.push_back(std::string(static_cast<size_t>(i * 7 % 61), static_cast<char>('a' + i % 20)) + "x y");
  const TextLoss one = perplexity(small.evaluated(), *rows(texts), {.batch = 1});
  for (const int64_t batch : {2, 5, 64}) {
    int64_t last = 0;
    const TextLoss many = perplexity(small.evaluated(), *rows(texts), {.batch = batch}, {}, [&](int64_t done, int64_t of) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, of);
      last = done;
    });
    EXPECT_EQ(many.tokens, one.tokens);
    EXPECT_NEAR(many.loss, one.loss, 1e-6 * one.loss) << batch;
  }
  EXPECT_EQ(perplexity(small.evaluated(), *rows(texts), {.documents_max = 3}).documents, 3);
}

TEST(Perplexity, CountsOnlyWhatIsAskedFor) {
  SmallModel small;
  data::TestDocument asked = document("ab cd");
  asked.targets = {0, 0, 0, 1, 1, 1};
  const TextLoss found = perplexity(small.evaluated(), *data::row_of({asked}, 257), {});
  EXPECT_EQ(found.tokens, 2);
  EXPECT_EQ(found.bytes, 2);
  EXPECT_NEAR(found.loss, sum_of(small.log_probabilities({'a', 'b', ' ', 'c', 'd'}), 2), 1e-4);
}

TEST(Perplexity, LeavesOutTheFirstTokenWhereNothingStandsBeforeIt) {
  SmallModel small;
  EvaluatedModel evaluated = small.evaluated();
  evaluated.text_prefix = {};  // it has a token that begins an empty prompt (begin), and adds none to texts, as transformers does not
  const TextLoss found = perplexity(evaluated, *rows({"abc"}), {});
  EXPECT_EQ(found.tokens, 2);
  EXPECT_EQ(found.bytes, 2);
  EXPECT_NEAR(found.loss, sum_of(small.log_probabilities({'a', 'b', 'c'})), 1e-4);
}

TEST(Perplexity, AddsNothingBeforeADocumentThatBeginsSoAlready) {
  SmallModel small;
  data::TestDocument begun = document("abc");
  begun.tokens.insert(begun.tokens.begin(), 256);
  const TextLoss found = perplexity(small.evaluated(), *data::row_of({begun}, 257), {});
  EXPECT_EQ(found.tokens, 3);
  EXPECT_EQ(found.bytes, 3);
  EXPECT_NEAR(found.loss, sum_of(small.log_probabilities({256, 'a', 'b', 'c'})), 1e-4);
}

// A template writes what a conversation begins with: here its first token is 7.
TEST(Perplexity, ReadsConversationsWithTheIdsOfTheirTemplateAlone) {
  SmallModel small;
  data::TestDocument written = document("\x07yes");
  written.targets = {0, 1, 1, 1, 0};
  const TextLoss found = perplexity(small.evaluated(), *data::row_of({written}, 257), {});
  EXPECT_EQ(found.tokens, 3);
  EXPECT_EQ(found.conversations, 1);
  EXPECT_NEAR(found.loss, sum_of(small.log_probabilities({7, 'y', 'e', 's'})), 1e-4);
  // Where its prompts are targets too, the caller says that it is one.
  written.targets = {};
  const TextLoss all = perplexity(small.evaluated(), *data::row_of({written}, 257), {.add_prefix = false});
  EXPECT_EQ(all.tokens, 3) << "without context, the first token is not counted";
  EXPECT_NEAR(all.loss, found.loss, 1e-6);
}

// One file may hold both: the plain text is read after the prefix, the conversation is not.
TEST(Perplexity, ReadsPlainTextsAmongConversationsAsAnyOther) {
  SmallModel small;
  data::TestDocument written = document("\x07yes"), plain = document("abc");
  written.targets = {0, 1, 1, 1, 0};
  plain.targets = {1, 1, 1, 1};
  std::vector<TextLoss> each;
  const TextLoss found =
      perplexity(small.evaluated(), *data::row_of({written, plain}, 257), {}, [&](const TextLoss& one) { each.push_back(one); });
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(found.conversations, 1);
  EXPECT_NEAR(each[0].loss, sum_of(small.log_probabilities({7, 'y', 'e', 's'})), 1e-4);
  EXPECT_EQ(each[1].tokens, 3);
  EXPECT_EQ(each[1].bytes, 3);
  EXPECT_NEAR(each[1].loss, sum_of(small.log_probabilities({256, 'a', 'b', 'c'})), 1e-4);
}

TEST(Perplexity, RefusesWindowsThatCannotBe) {
  SmallModel small;
  EXPECT_THAT(refused([&] { perplexity(small.evaluated(), *rows({"a"}), {.window = 25}); }),
              HasSubstr("--window 25: the model reads at most 24 tokens"));
  EXPECT_THAT(refused([&] { perplexity(small.evaluated(), *rows({"a"}), {.window = 8, .stride = 9}); }),
              HasSubstr("--stride 9: must be at most the window, 8"));
  EvaluatedModel evaluated = small.evaluated();
  evaluated.text_prefix = {1, 2, 3};
  EXPECT_THAT(refused([&] { perplexity(evaluated, *rows({"a"}), {.window = 2}); }), HasSubstr("3 tokens before every text"));
  EvaluatedModel other = small.evaluated();
  other.vocab = 90;
  EXPECT_THAT(refused([&] { perplexity(other, *rows({"a"}), {}); }), HasSubstr("gives id 97, and the model has ids below 90"));
}

}  // namespace
}  // namespace cairn::evaluate
