#include "data/corpus/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

struct TokenizedOutcome {
  TokenStream row;
  BadLines bad;
};

struct How {
  int threads = 1;
  int64_t chunk_bytes = 1 << 20;
  DocumentOptions document_options = {};
  std::function<void(int64_t, int64_t)> progress = {};
};

TokenizedOutcome run(const std::function<std::unique_ptr<ChunkReader>(const ChunkOptions&)>& open, const Tokenizer& tokenizer,
                     const How& how, int64_t bytes) {
  const auto image = std::make_shared<std::vector<std::byte>>();
  TokenWriter writer([&](std::span<const std::byte> more) { image->insert(image->end(), more.begin(), more.end()); },
                     tokenizer.vocab_size());
  const auto reader = open(chunk_options_for(tokenizer, {.chunk_bytes = how.chunk_bytes}));
  const BadLines bad =
      tokenize(*reader, tokenizer, how.document_options, writer, {.threads = how.threads, .bytes = bytes, .progress = how.progress});
  writer.finish({});
  return {TokenStream({read_tokens(*image, image, "a test")}), bad};
}

TokenizedOutcome run(const Documents& documents, const Tokenizer& tokenizer, const How& how = {}) {
  return run([&](const ChunkOptions& options) { return make_chunk_reader(documents, options); }, tokenizer, how,
             static_cast<int64_t>(documents.text.size()));
}

TokenizedOutcome run_lines(const std::string& lines, const Tokenizer& tokenizer, const How& how = {}) {
  const Scratch scratch;
  const std::string path = scratch.write("x.jsonl", lines);
  return run([&](const ChunkOptions& options) { return make_line_reader(path, options); }, tokenizer, how,
             static_cast<int64_t>(lines.size()));
}

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
  const TokenizedOutcome outcome = run(documents, *make_byte_tokenizer());
  EXPECT_EQ(ids_of(outcome.row), (Ids{'a', 'b', 256, 'c', 256}));
  EXPECT_EQ(outcome.row.document_begin(1), 3);
}

// As in `transformers`; what a template writes stays as it is.
TEST(Tokenize, BeginsEachTextOnceWithWhatTheTokenizerAddsAndNoConversation) {
  const std::string_view nothing = "x";
  Bpe bpe = train_bpe(std::span(&nothing, 1), {.vocab = 258, .specials = {"<s>", "</s>"}});
  bpe.begin = {256};
  const auto tokenizer = make_bpe_tokenizer(std::move(bpe));
  DocumentOptions document_options;
  document_options.renderer = make_renderer("plain", "</s>");
  const TokenizedOutcome lines =
      run_lines("{\"text\": \"ab\"}\n{\"question\": \"q\", \"answer\": \"a\"}\n", *tokenizer, {.document_options = document_options});
  EXPECT_EQ(ids_of(lines.row), (Ids{256, 'a', 'b', 257, 'q', '\n', '\n', 'a', 257}));
  const Documents two{.origin = "a test", .text = "a b c d--e", .spans = {{0, 7}, {9, 10}}};
  for (const int64_t chunk_bytes : {1, 2, 100})
    EXPECT_EQ(ids_of(run(two, *tokenizer, {.threads = 2, .chunk_bytes = chunk_bytes}).row),
              (Ids{256, 'a', ' ', 'b', ' ', 'c', ' ', 'd', 257, 256, 'e', 257}));
  const Scratch scratch;
  const std::string file = scratch.write("x.txt", "a b c d\n<|endoftext|>e");
  const auto open = [&](const ChunkOptions& options) { return make_text_reader(file, options); };
  for (const int64_t chunk_bytes : {1, 2, 100})
    EXPECT_EQ(ids_of(run(open, *tokenizer, {.chunk_bytes = chunk_bytes}, 22).row),
              (Ids{256, 'a', ' ', 'b', ' ', 'c', ' ', 'd', 257, 256, 'e', 257}));
}

TEST(Tokenize, GivesTheSameIdsForAnyChunksAndThreads) {
  const Documents stories = generate_stories(2, 30000);
  const auto tokenizer = story_tokenizer(stories);
  Ids plain;
  for (int64_t i = 0; i < stories.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer->encode(stories[i]);
    plain.insert(plain.end(), ids.begin(), ids.end());
    plain.push_back(tokenizer->end_of_text());
  }
  for (const int64_t chunk_bytes : {1, 7, 997, 30001}) {
    for (const int threads : {1, 2, 5}) {
      const TokenizedOutcome outcome = run(stories, *tokenizer, {.threads = threads, .chunk_bytes = chunk_bytes});
      EXPECT_EQ(ids_of(outcome.row), plain) << chunk_bytes;
      EXPECT_EQ(outcome.row.documents(), stories.size());
    }
  }
}

TEST(Tokenize, CutsOneLongDocumentOnlyWhereIdsDoNotChange) {
  const Documents document = one_document("  a\n\n\n b   c's\t\td " + generate_stories(2, 5000).text + "   ");
  const auto tokenizer = story_tokenizer(document);
  const std::vector<int32_t> ids = tokenizer->encode(document[0]);
  Ids plain(ids.begin(), ids.end());
  plain.push_back(tokenizer->end_of_text());
  for (const int64_t chunk_bytes : {1, 2, 3, 5, 100})
    EXPECT_EQ(ids_of(run(document, *tokenizer, {.threads = 2, .chunk_bytes = chunk_bytes}).row), plain) << chunk_bytes;
}

TEST(Tokenize, AsksOnlyForWhatIsATargetAndGivesTheSameForAnyChunksAndThreads) {
  const std::string lines =
      "{\"text\": \"xy\"}\n"
      "{\"question\": \"q\", \"answer\": \"ab\"}\n"
      "{\"text\": \"z\"}\n"
      "{\"question\": \"r\", \"answer\": \"c\"}\n";
  const auto tokenizer = make_byte_tokenizer();
  DocumentOptions document_options;
  document_options.renderer = make_renderer("plain");
  for (const int64_t chunk_bytes : {1, 50, 1000}) {
    for (const int threads : {1, 3}) {
      const TokenizedOutcome outcome =
          run_lines(lines, *tokenizer, {.threads = threads, .chunk_bytes = chunk_bytes, .document_options = document_options});
      EXPECT_EQ(ids_of(outcome.row), (Ids{'x', 'y', 256, 'q', '\n', '\n', 'a', 'b', 256, 'z', 256, 'r', '\n', '\n', 'c', 256}));
      Ids targets(static_cast<size_t>(outcome.row.size()), 1);
      outcome.row.mask_non_targets(0, outcome.row.size(), targets.data());
      const int64_t no = kIgnoreIndex;
      EXPECT_EQ(targets, (Ids{1, 1, 1, no, no, no, 1, 1, 1, 1, 1, no, no, no, 1, 1}));
      EXPECT_EQ(outcome.row.documents(), 4);
    }
  }
}

// Puts a dummy before each text that it is given, as Llama 2's tokenizer puts a space, and takes "ab" and "cc" as one.
class Dummies final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& into) const override {
    into.push_back(0);
    for (size_t i = 0; i < text.size(); ++i) {
      const std::string_view two = text.substr(i, 2);
      into.push_back(two == "ab" ? 1 : two == "cc" ? 2 : text[i]);
      i += two == "ab" || two == "cc" ? 1 : 0;
    }
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::string piece(int32_t) const override { return ""; }
  int64_t vocab_size() const override { return 128; }
  std::optional<int32_t> id_of(std::string_view token) const override { return token == "</s>" ? std::optional(3) : std::nullopt; }
  bool is_special(int32_t id) const override { return id == 3; }
  bool is_split_point(char, char) const override { return false; }
  std::string json() const override { return ""; }
};

TEST(Tokenize, GivesAConversationTheIdsOfItsWholeTextWhereItsPromptsKeepTheirs) {
  DocumentOptions document_options;
  document_options.renderer = {.identity = "glued", .render = [](std::span<const ChatMessage> messages) {
                                 return std::vector<TextSegment>{{messages[0].content, false}, {messages[1].content, true}, {"z", false}};
                               }};
  const auto ids = [&](const char* question, const char* answer) {
    const TokenizedOutcome outcome = run_lines(fmt::format("{{\"question\": \"{}\", \"answer\": \"{}\"}}\n", question, answer), Dummies(),
                                               {.document_options = document_options});
    Ids found = ids_of(outcome.row), targets(found.size(), 1);
    outcome.row.mask_non_targets(0, outcome.row.size(), targets.data());
    for (size_t i = 0; i < found.size(); ++i) found[i] = targets[i] == 1 ? found[i] : -found[i];  // not asked for
    return found;
  };
  EXPECT_EQ(ids("xab", "cc"), (Ids{0, -'x', -1, 2, -'z', -3}));          // one dummy, and the answer's tokens alone
  EXPECT_EQ(ids("xa", "b"), (Ids{0, -'x', -'a', 0, 'b', 0, -'z', -3}));  // "ab" would be one token: apart, as it will be generated
}

TEST(Tokenize, EndsAConversationOnceThatEndsItself) {
  DocumentOptions document_options;
  for (const char* name : {"plain", "alpaca"}) {
    document_options.renderer = make_renderer(name);
    const Ids ids = ids_of(
        run_lines("{\"question\": \"q\", \"answer\": \"ab\"}\n", *make_byte_tokenizer(), {.document_options = document_options}).row);
    EXPECT_EQ(Ids(ids.end() - 4, ids.end()), (Ids{'\n', 'a', 'b', 256}));
  }
}

TEST(Tokenize, MakesTwoDocumentsOfAPreference) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string line = "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  DocumentOptions document_options;
  document_options.renderer = make_renderer("plain");
  EXPECT_EQ(ids_of(run_lines(line, *tokenizer, {.document_options = document_options}).row), (Ids{'q', '\n', '\n', 'a', 256}));
  document_options.pairs = true;
  EXPECT_EQ(ids_of(run_lines(line, *tokenizer, {.document_options = document_options}).row),
            (Ids{'q', '\n', '\n', 'a', 256, 'q', '\n', '\n', 'b', 256}));
  EXPECT_THAT(refusal([&] { run_lines("{\"text\": \"a\"}\n", *tokenizer, {.document_options = document_options}); }),
              HasSubstr("x.jsonl:1: no fields \"chosen\" and \"rejected\", which data.kind = preference needs"));
}

TEST(Tokenize, SkipsOrRefusesBadLinesAndAlwaysNamesTheFirst) {
  std::string lines;
  for (int line = 1; line <= 300; ++line) lines += line % 100 == 0 ? "oops\n" : "{\"text\": \"a\"}\n";
  lines += "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody answers\"}]}\n";
  const auto tokenizer = make_byte_tokenizer();
  for (const int threads : {1, 4}) {
    DocumentOptions document_options;
    EXPECT_THAT(
        refusal([&] { run_lines(lines, *tokenizer, {.threads = threads, .chunk_bytes = 100, .document_options = document_options}); }),
        HasSubstr("x.jsonl:100: invalid JSON at byte 1. Fix the line, or set data.on_bad = \"skip\" to leave such lines out."));
    document_options.skip_bad = true;
    const TokenizedOutcome outcome =
        run_lines(lines, *tokenizer, {.threads = threads, .chunk_bytes = 100, .document_options = document_options});
    EXPECT_EQ(outcome.row.documents(), 297);
    EXPECT_EQ(outcome.bad.count, 4);
    EXPECT_THAT(outcome.bad.named,
                ElementsAre(HasSubstr("x.jsonl:100: "), HasSubstr("x.jsonl:200: "), HasSubstr("x.jsonl:300: invalid JSON"),
                            HasSubstr("x.jsonl:301: nothing to learn from: no message of the assistant")));
  }
}

TEST(Tokenize, TellsHowFarItIs) {
  const Documents stories = generate_stories(2, 20000);
  std::vector<int64_t> seen;
  run(stories, *make_byte_tokenizer(),
      {.threads = 2, .chunk_bytes = 4000, .document_options = {}, .progress = [&](int64_t bytes, int64_t of) {
         EXPECT_EQ(of, static_cast<int64_t>(stories.text.size()));
         seen.push_back(bytes);
       }});
  EXPECT_GE(seen.size(), 5u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), static_cast<int64_t>(stories.text.size()));
}

// Its end of text is no text at all, and it fails on some.
class Odd final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& into) const override {
    if (text.find('!') != std::string_view::npos) base::fail_input("no luck");
    into.insert(into.end(), text.size(), 1);
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::string piece(int32_t) const override { return ""; }
  int64_t vocab_size() const override { return 3; }
  std::optional<int32_t> id_of(std::string_view token) const override { return token == "</s>" ? std::optional(2) : std::nullopt; }
  bool is_special(int32_t id) const override { return id == 2; }
  bool is_split_point(char, char after) const override { return after == ' '; }
  std::string json() const override { return ""; }
};

TEST(Tokenize, EndsDocumentsOfATokenizerThatHasAnotherMarker) {
  const Documents documents{.origin = "a test", .text = "ab--c", .spans = {{0, 2}, {4, 5}}};
  for (const int64_t chunk_bytes : {1, 100})
    EXPECT_EQ(ids_of(run(documents, Odd(), {.chunk_bytes = chunk_bytes}).row), (Ids{1, 1, 2, 1, 2}));
}

// Cuts nothing itself, but counts on whole documents: the ids say how long the text was.
class Whole final : public Tokenizer {
 public:
  explicit Whole(std::optional<int32_t> end = 0) : end_(end) {}
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& into) const override {
    into.push_back(static_cast<int32_t>(text.size()));
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::string piece(int32_t) const override { return ""; }
  int64_t vocab_size() const override { return 1 << 20; }
  std::optional<int32_t> id_of(std::string_view) const override { return end_; }
  bool is_special(int32_t id) const override { return id == 0; }
  bool is_split_point(char, char) const override { return false; }
  std::string json() const override { return ""; }

 private:
  std::optional<int32_t> end_;
};

TEST(Tokenize, CutsNoDocumentOfATokenizerThatTakesThemWhole) {
  const Scratch scratch;
  const std::string path = scratch.write("a.txt", "some words\nand more of them<|endoftext|>b c<|endoftext|>");
  for (const int64_t chunk_bytes : {1, 7, 100}) {
    for (const int threads : {1, 2}) {
      const How how{.threads = threads, .chunk_bytes = chunk_bytes};
      EXPECT_EQ(ids_of(run(one_document("some words\nand more of them"), Whole(), how).row), (Ids{27, 0})) << chunk_bytes;
      EXPECT_EQ(ids_of(run([&](const ChunkOptions& options) { return make_text_reader(path, options); }, Whole(), how, 60).row),
                (Ids{27, 0, 3, 0}))
          << chunk_bytes;
    }
  }
}

TEST(Tokenize, CutsWhereTheTokenizersOwnPatternAllowsIt) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 5; ++i) text += "one,\n\n two?\n'three'\n\n4567 89\nten\r eleven\n";
  const std::string path = scratch.write("a.txt", text);
  const std::string_view learned = "one,\n one,\n two?\n two?\n";
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2}) {
    const auto tokenizer = make_bpe_tokenizer(train_bpe(std::span(&learned, 1), {.vocab = 280, .pattern = pattern}));
    const std::vector<int32_t> ids = tokenizer->encode(text);
    Ids plain(ids.begin(), ids.end());
    plain.push_back(tokenizer->end_of_text());
    for (int64_t chunk_bytes = 1; chunk_bytes < 40; ++chunk_bytes) {
      const auto open = [&](const ChunkOptions& options) { return make_text_reader(path, options); };
      EXPECT_EQ(ids_of(run(open, *tokenizer, {.chunk_bytes = chunk_bytes}, 60).row), plain) << chunk_bytes;
    }
  }
}

TEST(Tokenize, RecognisesTheMarkersOfAConversation) {
  const std::string_view learned = "hello";
  const auto tokenizer =
      make_bpe_tokenizer(train_bpe(std::span(&learned, 1), {.vocab = 259, .specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}}));
  const std::string lines = "{\"question\": \"q\", \"answer\": \"a\"}\n";
  Ids expected;
  const auto say = [&](int64_t marker, std::string_view text) {
    expected.push_back(marker);
    for (const char c : text) expected.push_back(c);
  };
  say(257, "user\nq");
  say(258, "\n");
  say(257, "assistant\na");
  say(258, "\n");
  expected.push_back(256);
  EXPECT_EQ(ids_of(run_lines(lines, *tokenizer).row), expected);
}

TEST(Tokenize, TakesARecordAsOneDocumentWhateverItsTextSays) {
  const auto tokenizer = make_byte_tokenizer();
  const TokenizedOutcome outcome = run_lines("{\"text\": \"a<|endoftext|>b\"}\n", *tokenizer);
  EXPECT_EQ(ids_of(outcome.row), (Ids{'a', 256, 'b', 256}));
  EXPECT_EQ(outcome.row.documents(), 1);
}

TEST(Tokenize, RefusesATokenizerWithoutAnEndOfDocuments) {
  for (const int threads : {1, 2})
    EXPECT_THAT(refusal([&] { run(one_document("a"), Whole(std::nullopt), {.threads = threads}); }),
                HasSubstr("has no token that ends a document"));
}

TEST(Tokenize, CarriesAThreadsFailureToTheCaller) {
  EXPECT_EQ(refusal([] { run(generate_stories(2, 20000), Odd(), {.threads = 3, .chunk_bytes = 1000}); }), "no luck");
}

}  // namespace
}  // namespace cairn::data
