#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/corpus/chunks.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Texts = std::vector<std::string>;

struct Outcome {
  Texts texts;
  Texts bad;
};

DocumentOptions skipping() {
  DocumentOptions document_options;
  document_options.skip_bad = true;
  return document_options;
}

// What a file gives; bad lines as "line: why".
Outcome read(const std::string& name, const std::string& bytes, const ChunkOptions& options = {}) {
  const Scratch scratch;
  const std::string path = scratch.write(name, bytes);
  const auto reader = name.ends_with("json") ? make_array_reader(path, options) : make_line_reader(path, options);
  BadLines bad;
  Outcome outcome;
  outcome.texts = texts_of(*reader, skipping(), &bad);
  for (const std::string& one : bad.named) outcome.bad.push_back(one.substr(path.size() + 1));
  return outcome;
}

TEST(LineRecords, AreReadWhateverTheLineEndsAndChunks) {
  const std::string bytes = "\xef\xbb\xbf{\"text\": \"a\"}\r\n\n   \n{\"text\": \"b\\n\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}";
  for (const int64_t chunk_bytes : {1, 5, 20, 1000}) {
    const Outcome outcome = read("x.jsonl", bytes, {.chunk_bytes = chunk_bytes});
    EXPECT_EQ(outcome.texts, (Texts{"a", "b\n", "c"})) << chunk_bytes;
    EXPECT_EQ(outcome.bad, Texts{});
  }
}

TEST(LineRecords, ThatAreBadAreNamedByLine) {
  const Outcome outcome = read("x.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n\nnot json\n{\"text\": \"b\"}\n", {.chunk_bytes = 16});
  EXPECT_EQ(outcome.texts, (Texts{"a", "b"}));
  EXPECT_THAT(outcome.bad, ElementsAre("2: field \"text\" holds a number, not a string", "4: invalid JSON at byte 2"));
}

TEST(LineRecords, ThatAreTooLongAreCountedOrRefused) {
  const std::string bytes = "{\"text\": \"a\"}\n{\"text\": \"" + std::string(1000, 'x') + "\"}\n{\"text\": \"b\"}\n";
  const Outcome outcome = read("x.jsonl", bytes, {.line_bytes = 100});
  EXPECT_EQ(outcome.texts, (Texts{"a", "b"}));
  EXPECT_THAT(outcome.bad, ElementsAre("2: a record of 1012 B, longer than data.line_bytes = 100"));
  EXPECT_THAT(
      refusal([&] { read("x.jsonl", bytes, {.line_bytes = 100, .refuse_long = true}); }),
      HasSubstr(
          "x.jsonl:2: a record longer than data.line_bytes = 100. Fix the line, or set data.on_bad = \"skip\" to leave such lines out."));
}

TEST(LineRecords, OfAHugeLineCostNoMoreMemoryThanTheBound) {
  const Scratch scratch;
  const std::string path = scratch.path("huge.jsonl");
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 256 << 20);  // a hole: one line of a quarter of a gigabyte
  const auto reader = make_line_reader(path, {.line_bytes = 4 << 20});
  Chunk chunk;
  size_t largest = 0;
  int64_t bad = 0;
  while (reader->next(chunk)) {
    largest = std::max(largest, chunk.text.capacity());
    bad += static_cast<int64_t>(chunk.bad.size());
  }
  EXPECT_EQ(bad, 1);
  EXPECT_LE(largest, size_t{8} << 20);
  const auto refusing = make_line_reader(path, {.line_bytes = 4 << 20, .refuse_long = true});
  EXPECT_THAT(refusal([&] { refusing->next(chunk); }), HasSubstr("huge.jsonl:1: a record longer than data.line_bytes = 4194304"));
}

TEST(ListRecords, AreReadWhateverTheSpacingAndChunks) {
  const std::string bytes =
      "\xef\xbb\xbf \n[{\"text\": \"a ] } , \\\" [\"},\n {\"text\" : \"b\", \"x\": [1, {\"y\": []}]}\n,\n\n{\"text\":\"c\\\\\"}] \n";
  for (const int64_t chunk_bytes : {1, 5, 20, 1000}) {
    const Outcome outcome = read("x.json", bytes, {.chunk_bytes = chunk_bytes});
    EXPECT_EQ(outcome.texts, (Texts{"a ] } , \" [", "b", "c\\"})) << chunk_bytes;
    EXPECT_EQ(outcome.bad, Texts{});
  }
  EXPECT_EQ(read("x.json", "[]").texts, Texts{});
}

TEST(ListRecords, ThatAreBadAreNamedByTheLineTheyBeginOn) {
  const Outcome outcome = read("x.json", "[\n {\"text\": \"a\"},\n 17, \"s\",\n [1],\n {\"text\":\n \"b\"},\n {\"text\" \"c\"}]");
  EXPECT_EQ(outcome.texts, (Texts{"a", "b"}));
  EXPECT_THAT(outcome.bad, ElementsAre("3: not a JSON object but a number", "3: not a JSON object but a string",
                                       "4: not a JSON object but an array", "7: invalid JSON at byte 11"));
  EXPECT_THAT(read("x.json", "[{\"text\": \"a\"},\n{\"text\": \"b").bad, ElementsAre("2: the file ends inside this record"));
  EXPECT_THAT(read("x.json", "[{\"text\": \"a\"}, {\"text\": \"" + std::string(500, 'b') + "\"}]", {.line_bytes = 50}).bad,
              ElementsAre("1: a record of 512 B, longer than data.line_bytes = 50"));
  EXPECT_THAT(read("x.json", std::string(1'000'000, '[')).bad, ElementsAre("1: the file ends inside this record"));
}

TEST(ListRecords, MustFormAList) {
  const auto says = [](const std::string& bytes) { return refusal([&] { read("x.json", bytes); }); };
  EXPECT_THAT(says("{\"a\": 1}"), HasSubstr("x.json:1: not a list of JSON objects: it does not begin with [; set data.format"));
  EXPECT_THAT(says("\n[{}\n{}]"), HasSubstr("x.json:3: no comma between two records"));
  EXPECT_THAT(says("[{},]"), HasSubstr("x.json:1: a record is missing before this comma or bracket"));
  EXPECT_THAT(says("[{}"), HasSubstr("x.json:1: the file ends before its list does: no ] was found"));
  EXPECT_THAT(says("[{},\n"), HasSubstr("x.json:2: the file ends before its list does: no ] was found"));
  EXPECT_THAT(says("[{}]\nx"), HasSubstr("x.json:2: more text after the end of the list"));
}

TEST(BadLines, NameTheFirstFew) {
  BadLines bad;
  EXPECT_EQ(bad.summary(), "");
  bad.add("a.jsonl", {3, "why"});
  EXPECT_EQ(bad.summary(), "1 bad line was skipped: a.jsonl:3: why");
  for (int64_t line = 4; line < 10; ++line) bad.add("a.jsonl", {line, "why"});
  BadLines more;
  more.add("b.jsonl", {1, "x"});
  bad.add(more);
  EXPECT_EQ(bad.summary(), "8 bad lines were skipped: a.jsonl:3: why; a.jsonl:4: why; a.jsonl:5: why; a.jsonl:6: why; a.jsonl:7: why; …");
}

}  // namespace
}  // namespace cairn::data
