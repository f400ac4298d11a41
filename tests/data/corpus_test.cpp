#include "data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "data/source.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DataOptions small() {
  DataOptions data;
  data.stories_bytes = 20000;
  data.vocab = 400;
  data.length = 32;
  return data;
}

std::vector<int32_t> tokens_of(const Corpus& corpus) { return {corpus.samples.tokens().begin(), corpus.samples.tokens().end()}; }

TEST(Corpus, ReadsAsTheStoriesItWasMadeFrom) {
  base::Log log = base::Log::capture();
  const Corpus corpus = open_corpus(small(), {.held_out_fraction = 0.1}, log);
  const Documents stories = tell_stories(1, 20000);
  EXPECT_EQ(corpus.tokenizer->vocab_size(), 400);
  std::string text;
  for (int64_t i = 0; i < stories.size(); ++i) text += std::string(stories[i]) + "<|endoftext|>";
  EXPECT_EQ(corpus.tokenizer->decode(corpus.samples.tokens()), text);
  EXPECT_GT(corpus.samples.held_out().count, 0);
  EXPECT_EQ(corpus.text_bytes, static_cast<int64_t>(stories.text.size()));
}

TEST(Corpus, ComesOutTheSameFromTheCache) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const CorpusOptions options{.cache_folder = scratch.path("cache")};
  const Corpus first = open_corpus(small(), options, log);
  const Corpus second = open_corpus(small(), options, log);
  EXPECT_FALSE(first.from_cache);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(tokens_of(first), tokens_of(second));
  EXPECT_EQ(first.tokenizer->json(), second.tokenizer->json());
  DataOptions other = small();
  other.stories_seed = 2;
  EXPECT_FALSE(open_corpus(other, options, log).from_cache);
  EXPECT_TRUE(log.lines().empty());
}

TEST(Corpus, IsMadeAnewWhereTheCacheIsDamaged) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const CorpusOptions options{.cache_folder = scratch.path("cache")};
  const Corpus first = open_corpus(small(), options, log);
  for (const auto& entry : std::filesystem::directory_iterator(options.cache_folder)) {
    std::string bytes = base::read_file(entry.path(), 1 << 20);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    base::write_atomically(entry.path(), bytes);
  }
  const Corpus second = open_corpus(small(), options, log);
  EXPECT_FALSE(second.from_cache);
  EXPECT_EQ(tokens_of(first), tokens_of(second));
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("its checksum does not match"), HasSubstr("its checksum does not match")));
  EXPECT_TRUE(open_corpus(small(), options, log).from_cache);
}

TEST(Corpus, UsesATokenizerFileAsItIs) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const std::string json = open_corpus(small(), {}, log).tokenizer->json();
  DataOptions data = small();
  data.tokenizer_file = scratch.write("tokenizer.json", json);
  data.stories_seed = 5;
  EXPECT_EQ(open_corpus(data, {}, log).tokenizer->json(), json);
  data.tokenizer_file = scratch.path("missing.json");
  EXPECT_THAT(refusal([&] { open_corpus(data, {}, log); }), HasSubstr("missing.json"));
}

TEST(Corpus, ReadsATextFileByBytes) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = small();
  data.tokenizer = "bytes";
  data.length = 3;
  data.path = scratch.write("text.txt", "abcdefg");
  EXPECT_THAT(tokens_of(open_corpus(data, {.held_out_fraction = 0.1}, log)), ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'g', 256));
  data.path = scratch.write("short.txt", "abcde");
  EXPECT_EQ(refusal([&] { open_corpus(data, {.held_out_fraction = 0.1}, log); }),
            "data.path = " + data.path +
                ": 6 tokens are too few; a training sample and a held-out sample of data.length = 3 needs 7: give more text or set "
                "data.length to 2 or less");
}

TEST(DataOptions, AreDescribedBySchema) {
  const base::Section section = data_schema().section();
  EXPECT_EQ(section.name, "data");
  EXPECT_EQ(section.entries.size(), 9u);
}

}  // namespace
}  // namespace cairn::data
