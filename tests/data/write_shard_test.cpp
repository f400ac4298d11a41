#include "data/corpus/write_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/terminal.h"
#include "data/corpus/inspect.h"
#include "data/corpus/llmc_file.h"
#include "data/corpus/tokenize_progress.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(WriteShard, KeepsTokensDocumentsAndTargets) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  DataOptions data;
  data.tokenizer = TokenizerKind::bytes;
  data.chat_template = "plain";
  data.on_bad = OnBadLine::skip;
  data.sources = {scratch.write("a.jsonl", "{\"text\": \"xy\"}\n{\"question\": \"q\", \"answer\": \"ab\"}\nbad\n"),
                  scratch.write("b.txt", "z")};
  const Corpus corpus = open_token_streams(data, {}, log);
  EXPECT_EQ(corpus.samples, nullptr);
  const std::string path = scratch.path("all.tokens");
  const WrittenShard shard = write_shard(data, {}, path, log);
  EXPECT_EQ(shard.documents, 3);
  EXPECT_EQ(shard.tokens, 11);
  const TokenStream row({open_token_file(path)});
  EXPECT_EQ(row.ids(), (std::vector<int32_t>{'x', 'y', 256, 'q', '\n', '\n', 'a', 'b', 256, 'z', 256}));
  EXPECT_EQ(row.targets_in(0, 11), 8);
  EXPECT_EQ(row.targets_in(3, 3), 0);
  EXPECT_EQ(row.document_begin(1), 3);
  EXPECT_EQ(row.document_begin(2), 9);
  EXPECT_EQ(row.files()[0].facts.tokenizer, hash(*corpus.tokenizer));
  EXPECT_EQ(row.files()[0].facts.bad_lines, 1);
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), shard.bytes);
}

TEST(Inspect, CountsWhatAFileHolds) {
  const Scratch scratch;
  DocumentOptions document_options;
  document_options.renderer = make_renderer("plain");
  const std::string lines = scratch.write("a.jsonl", "{\"question\": \"q\", \"answer\": \"ab\"}\nbad\n{\"text\": \"xyz\"}\n");
  const Inspection found = inspect(find_files(lines, "auto", "data.path").at(0), document_options, {});
  EXPECT_EQ(found.documents, 2);
  EXPECT_EQ(found.text_bytes, 1 + 2 + 2 + 13 + 3);
  EXPECT_EQ(found.target_bytes, 2 + 13 + 3);
  EXPECT_EQ(found.bad.count, 1);
  EXPECT_EQ(found.first.parts, (std::vector<TextSegment>{{"q\n\n", false}, {"ab<|endoftext|>", true}}));
  const std::string text = scratch.write("b.txt", std::string(20000, 'w') + " one<|endoftext|>two");
  const Inspection texts = inspect(find_files(text, "auto", "data.path").at(0), document_options, {.chunk_bytes = 1000});
  EXPECT_EQ(texts.documents, 2);
  EXPECT_EQ(texts.text_bytes, 20007);
  EXPECT_EQ(texts.first.parts, (std::vector<TextSegment>{{std::string(4096, 'w'), true}}));
  const std::string shard = scratch.write("c.bin", llmc_bytes(tokens_in_memory({{{1, 50256}}, {{2, 3, 50256}}}, 50257)));
  const Inspection tokens = inspect(find_files(shard, "auto", "data.path").at(0), document_options, {});
  EXPECT_EQ(tokens.documents, 2);
  EXPECT_EQ(tokens.tokens, 5);
}

TEST(TokenizeProgress, TellsTheTimeLeftOfWhatTakesLong) {
  std::vector<std::string> lines;
  base::Terminal terminal([&](std::string_view text) { lines.emplace_back(text); }, false);
  base::VirtualClock clock;
  clock.advance_by(std::chrono::seconds(100));
  TokenizeProgress progress(terminal, clock);
  progress(1 << 20, 10 << 20);
  clock.advance_by(std::chrono::seconds(1));
  progress(2 << 20, 10 << 20);
  EXPECT_TRUE(lines.empty());
  clock.advance_by(std::chrono::seconds(1));
  progress(3 << 20, 10 << 20);
  progress(3 << 20, 10 << 20);  // too soon for another line
  progress.finish();
  EXPECT_THAT(lines, ElementsAre(HasSubstr("tokenising: 3.00 MiB of 10.0 MiB, 7.0 s left")));
}

}  // namespace
}  // namespace cairn::data
