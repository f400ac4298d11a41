#include "data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "data/corpus/file_lock.h"
#include "data/corpus/llmc_file.h"
#include "data/corpus/source.h"
#include "documents.h"
#include "kernels/aten.h"
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

std::vector<int32_t> tokens_of(const Corpus& corpus) { return corpus.token_streams.at(0)->ids(); }

TEST(Corpus, ReadsAsTheStoriesItWasMadeFrom) {
  base::Log log = base::Log::capture();
  const Corpus corpus = open_corpus(small(), {.held_out_fraction = 0.1}, log);
  const Documents stories = generate_stories(1, 20000);
  EXPECT_EQ(corpus.tokenizer->vocab_size(), 400);
  std::string text;
  for (int64_t i = 0; i < stories.size(); ++i) text += std::string(stories[i]) + "<|endoftext|>";
  EXPECT_EQ(corpus.tokenizer->decode(tokens_of(corpus)), text);
  EXPECT_GT(corpus.samples->held_out().count, 0);
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

// As where another run of the same data starts at the same time, and is slower.
TEST(Corpus, WaitsForNobodyWhereTokensAndTokenizerAreCached) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const CorpusOptions options{.cache_folder = scratch.path("cache")};
  open_corpus(small(), options, log);
  std::vector<std::string> entries;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path("cache"))) entries.push_back(entry.path().string());
  std::vector<std::unique_ptr<FileLock>> others;
  for (const std::string& entry : entries) others.push_back(std::make_unique<FileLock>(entry + ".lock", [](double, const std::string&) {}));
  ASSERT_GE(others.size(), 2u);
  EXPECT_TRUE(open_corpus(small(), options, log).from_cache);
  EXPECT_TRUE(log.lines().empty()) << log.lines().back();
}

TEST(Corpus, IsMadeAnewWhereTheCacheIsDamaged) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const CorpusOptions options{.cache_folder = scratch.path("cache")};
  const Corpus first = open_corpus(small(), options, log);
  for (const auto& entry : std::filesystem::directory_iterator(options.cache_folder)) {
    if (entry.path().extension() == ".lock") continue;
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
  data.tokenizer = TokenizerKind::bytes;
  data.length = 3;
  data.path = scratch.write("text.txt", "abcdefg");
  EXPECT_THAT(tokens_of(open_corpus(data, {.held_out_fraction = 0.1}, log)), ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'g', 256));
  data.path = scratch.write("short.txt", "abcde");
  EXPECT_EQ(refusal([&] { open_corpus(data, {.held_out_fraction = 0.1}, log); }),
            "data.path = " + data.path +
                ": 6 tokens are too few; a training sample and a held-out sample of data.length = 3 needs 7: give more text or set "
                "data.length to 2 or less");
}

DataOptions bytes_of(const std::string& path, int64_t length = 4) {
  DataOptions data;
  data.tokenizer = TokenizerKind::bytes;
  data.length = length;
  data.path = path;
  return data;
}

// Cairn's shard of a corpus, as `cairn data tokenize` writes it.
std::string shard_of(const Corpus& corpus) {
  std::string bytes;
  TokenWriter writer([&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
                     corpus.tokenizer->vocab_size());
  const std::vector<int32_t> tokens = tokens_of(corpus);
  const std::vector<int64_t> ends = {static_cast<int64_t>(tokens.size())};
  writer.add(tokens, ends, {});
  writer.finish({.tokenizer = hash(*corpus.tokenizer)});
  return bytes;
}

TEST(Corpus, ReadsTokenShardsAsTheyAre) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const Corpus text = open_corpus(bytes_of(scratch.write("a.txt", "some text")), {}, log);
  const std::string shard = scratch.write("a.tokens", shard_of(text));
  EXPECT_EQ(tokens_of(open_corpus(bytes_of(shard), {}, log)), tokens_of(text));
  const std::string llmc = scratch.write("a.bin", llmc_bytes(text.token_streams[0]->files()[0]));
  EXPECT_EQ(tokens_of(open_corpus(bytes_of(llmc), {}, log)), tokens_of(text));
  DataOptions learned = bytes_of(shard);
  learned.tokenizer = TokenizerKind::bpe;
  EXPECT_EQ(refusal([&] { open_corpus(learned, {}, log); }),
            "data.path = " + shard + ": token shards need the tokenizer they were made with: set data.tokenizer_file");
  DataOptions other = bytes_of(shard);
  other.tokenizer_file = scratch.write("tokenizer.json", open_corpus(small(), {}, log).tokenizer->json());
  EXPECT_THAT(refusal([&] { open_corpus(other, {}, log); }), HasSubstr(shard + ": its tokens were made by another tokenizer ("));
}

TEST(Corpus, ReadsAFolderOfSeveralFormatsAsOneSource) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  std::filesystem::create_directory(scratch.path("folder"));
  scratch.write("folder/1.txt", "one");
  scratch.write("folder/2.jsonl", "{\"text\": \"two\"}\n");
  scratch.write("folder/3.json", "[{\"text\": \"three\"}]");
  const Corpus corpus = open_corpus(bytes_of(scratch.path("folder")), {.cache_folder = scratch.path("cache"), .threads = 2}, log);
  EXPECT_EQ(corpus.tokenizer->decode(tokens_of(corpus)), "one<|endoftext|>two<|endoftext|>three<|endoftext|>");
  EXPECT_TRUE(open_corpus(bytes_of(scratch.path("folder")), {.cache_folder = scratch.path("cache")}, log).from_cache);
  scratch.write("folder/2.jsonl", "{\"text\": \"TWO\"}\n");  // as long as before, and just now
  const Corpus changed = open_corpus(bytes_of(scratch.path("folder")), {.cache_folder = scratch.path("cache")}, log);
  EXPECT_FALSE(changed.from_cache);
  EXPECT_EQ(changed.tokenizer->decode(tokens_of(changed)), "one<|endoftext|>TWO<|endoftext|>three<|endoftext|>");
}

TEST(Corpus, MixesSourcesByWeight) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of("");
  data.sources = {scratch.write("a.txt", std::string(99, 'a')), scratch.write("b.txt", std::string(43, 'b'))};
  const Corpus whole = open_corpus(data, {}, log);
  EXPECT_TRUE(whole.streams.empty());
  data.weights = {1, 3};
  const Corpus mixed = open_corpus(data, {.held_out_fraction = 0.2}, log);
  EXPECT_EQ(mixed.origin, "data.sources[0] = " + data.sources[0] + "; data.sources[1] = " + data.sources[1]);
  ASSERT_EQ(mixed.streams, (std::vector<Stream>{{{0, 20}, 1}, {{20, 9}, 3}}));
  const auto sampler = make_sampler(
      "shuffled",
      {.from = Subset().within(mixed.samples->training()), .global_batch = 40, .steps = 10, .seed = 1, .streams = mixed.streams});
  for (int64_t step = 0; step < 10; ++step) {
    mesh::Batch batch;
    mixed.samples->fill(sampler->ids(step), batch);
    EXPECT_NEAR((batch.field("tokens").select(1, 0) == 'b').sum().item<int64_t>(), 30, 2) << step;
  }
}

TEST(Corpus, LearnsAnswersOfConversationsAlone) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of(scratch.write("chat.jsonl", "{\"question\": \"q\", \"answer\": \"ab\"}\n"), 8);
  data.chat_template = "plain";
  data.packing = Packing::documents;
  const Corpus corpus = open_corpus(data, {}, log);
  mesh::Batch batch;
  corpus.samples->fill(std::vector<int64_t>{0}, batch);
  const int64_t no = kIgnoreIndex;
  EXPECT_TRUE(at::equal(batch.field("targets")[0], at::tensor({no, no, int64_t{'a'}, int64_t{'b'}, int64_t{256}, no, no, no}, at::kLong)));
  EXPECT_EQ(corpus.samples->tokens_in(0), 3);
  data.train_on_prompts = true;
  EXPECT_EQ(open_corpus(data, {}, log).samples->tokens_in(0), 5);
  const Renderer shout{.identity = "shout", .render = [](std::span<const ChatMessage> messages) {
                         return std::vector<TextSegment>{{messages.back().content + "!", true}};
                       }};
  data.train_on_prompts = false;
  EXPECT_EQ(tokens_of(open_corpus(data, {.renderer = shout}, log)), (std::vector<int32_t>{'a', 'b', '!', 256}));
}

TEST(Corpus, LearnsATokenizerWithTheMarkersOfConversations) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = small();
  data.path = scratch.write("chat.jsonl", "{\"question\": \"so so\", \"answer\": \"so so so\"}\n");
  data.vocab = 260;
  data.length = 4;
  const CorpusOptions options{.cache_folder = scratch.path("cache"), .threads = 2};
  for (const bool from_cache : {false, true}) {
    const Corpus corpus = open_corpus(data, options, log);
    EXPECT_EQ(corpus.from_cache, from_cache);
    const int32_t start = corpus.tokenizer->id_of("<|im_start|>").value();
    EXPECT_TRUE(corpus.tokenizer->is_special(start));
    EXPECT_EQ(corpus.tokenizer->piece(256), "so");  // not a piece of a marker
    const std::vector<int32_t> ids = tokens_of(corpus);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), start), 2);
    EXPECT_EQ(corpus.tokenizer->decode(ids), "<|im_start|>user\nso so<|im_end|>\n<|im_start|>assistant\nso so so<|im_end|>\n<|endoftext|>");
  }
  data.chat_template = "plain";
  EXPECT_FALSE(open_corpus(data, options, log).tokenizer->id_of("<|im_start|>"));
  data.chat_template = "chatml";
  data.vocab = 258;
  EXPECT_EQ(refusal([&] { open_corpus(data, options, log); }),
            "data.vocab = 258: must be at least 259: 256 bytes and the special tokens <|endoftext|>, <|im_start|>, <|im_end|>");
}

TEST(Corpus, TokenisesAnewWhenTheTemplateChanges) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of(scratch.write("chat.jsonl", "{\"question\": \"q\", \"answer\": \"ab\"}\n"), 8);
  data.chat_template = scratch.write("chat.jinja", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}");
  const CorpusOptions options{.cache_folder = scratch.path("cache"), .threads = 1};
  EXPECT_EQ(tokens_of(open_token_streams(data, options, log)), (std::vector<int32_t>{'q', 'a', 'b', 256}));
  EXPECT_TRUE(open_token_streams(data, options, log).from_cache);
  scratch.write("chat.jinja", "{% for m in messages %}{% generation %}{{ m.content }}.{% endgeneration %}{% endfor %}");
  const Corpus corpus = open_token_streams(data, options, log);
  EXPECT_FALSE(corpus.from_cache);
  EXPECT_EQ(tokens_of(corpus), (std::vector<int32_t>{'q', '.', 'a', 'b', '.', 256}));
  EXPECT_EQ(corpus.chat.value().name, data.chat_template);
}

TEST(Corpus, AsksForMarkersOnlyWhereThereAreConversations) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of(scratch.write("a.jsonl", "{\"text\": \"ab\"}\n"), 2);
  data.chat_template = "chatml";
  EXPECT_FALSE(open_token_streams(data, {}, log).chat);
  data.path = scratch.write("b.jsonl", "{\"question\": \"q\", \"answer\": \"ab\"}\n");
  EXPECT_EQ(
      refusal([&] { open_token_streams(data, {}, log); }),
      "data.template = chatml: the tokenizer has no token <|im_start|>: the template's marks would be ordinary text and an answer would "
      "have no end; choose alpaca or plain, or a tokenizer with these tokens (cairn tokenize train --special)");
  data.chat_template = "auto";
  EXPECT_EQ(open_token_streams(data, {}, log).chat.value().name, "alpaca");
}

TEST(Corpus, GivesPairsOfPreferences) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of(scratch.write("p.json",
                                            "[{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"},"
                                            " {\"prompt\": \"long one\", \"chosen\": \"a\", \"rejected\": \"b\"}]"),
                              8);
  data.kind = "preference";
  data.chat_template = "plain";
  const Corpus corpus = open_corpus(data, {}, log);
  EXPECT_EQ(corpus.samples->training(), (SampleRange{0, 1}));
  EXPECT_EQ(corpus.samples->tokens_in(0), 4);
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("conversations become text by the template plain"),
                                       HasSubstr("p.json: 1 pair left out: the prompt alone fills data.length = 8")));
  data.sources = {data.path};
  data.path.clear();
  data.weights = {1};
  EXPECT_EQ(refusal([&] { open_corpus(data, {}, log); }),
            "data.weights: data.kind = preference does not mix sources by weight. Leave data.weights out.");
}

TEST(Corpus, SkipsBadLinesIfToldToAndSaysSoEveryTime) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data = bytes_of(scratch.write("x.jsonl", "{\"text\": \"abcdef\"}\noops\n"));
  const CorpusOptions options{.cache_folder = scratch.path("cache")};
  EXPECT_EQ(refusal([&] { open_corpus(data, options, log); }),
            data.path + ":2: invalid JSON at byte 1. Fix the line, or set data.on_bad = \"skip\" to leave such lines out.");
  data.on_bad = OnBadLine::skip;
  EXPECT_EQ(tokens_of(open_corpus(data, options, log)).size(), 7u);
  EXPECT_TRUE(open_corpus(data, options, log).from_cache);
  EXPECT_THAT(log.lines(),
              ElementsAre(HasSubstr("data.path = " + data.path + ": 1 bad line was skipped: " + data.path + ":2: invalid JSON"),
                          HasSubstr("data.path = " + data.path + ": 1 bad line was skipped when it was tokenised")));
}

TEST(DataOptions, AreDescribedBySchema) {
  const base::Section section = data_schema().section();
  EXPECT_EQ(section.name, "data");
  EXPECT_EQ(section.entries.size(), 25u);
}

}  // namespace
}  // namespace cairn::data
