#include <gtest/gtest.h>

#include "data/corpus/chunks.h"
#include "data/corpus/source_file.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using Texts = std::vector<std::string>;

Texts read(const std::string& bytes, const ChunkOptions& options = {}) {
  const Scratch scratch;
  const std::string path = scratch.write("text.txt", bytes);
  return texts_of(*make_text_reader(path, options));
}

TEST(TextChunks, TakeAFileWithoutMarkersAsOneDocument) { EXPECT_EQ(read("\none\n\ntwo\n"), Texts{"\none\n\ntwo\n"}); }

TEST(TextChunks, CutAtMarkersAndDropLineBreaksAroundThem) {
  EXPECT_EQ(read("\none\n<|endoftext|>\ntwo\nlines\r\n<|endoftext|>"), (Texts{"\none", "two\nlines"}));
  EXPECT_EQ(read("<|endoftext|><|endoftext|>\n\n<|endoftext|> x<|endoftext|>y\n"), (Texts{" x", "y\n"}));
}

TEST(TextChunks, GiveTheSameDocumentsForAnyChunkSize) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += std::string(static_cast<size_t>(i % 7), '\n') + "word " + std::to_string(i * 7919) + " and\n more" +
            (i % 3 == 0 ? "\r\n\n<|endoftext|>" : "");
  const Texts whole = read(text);
  EXPECT_EQ(whole.size(), 14u);
  for (const int64_t bytes : {1, 2, 3, 13, 64, 100, 1000}) EXPECT_EQ(read(text, {.chunk_bytes = bytes}), whole) << bytes;
}

TEST(TextChunks, HaveUnixLineEndsAndNoByteOrderMark) {
  const std::string text = "\xef\xbb\xbfone\r\n\r\ntwo\r alone\r\r\nthree\n\xef\xbb\xbf\r";
  for (const int64_t bytes : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1000}) {
    std::string whole;
    for (const std::string& part : read(text, {.chunk_bytes = bytes})) whole += part;
    EXPECT_EQ(whole, "one\n\ntwo\r alone\r\nthree\n\xef\xbb\xbf\r") << bytes;
  }
  // A pair that a read of the file divides: the first read takes chunk_bytes + chunk_bytes / 4 + 64 bytes.
  const std::string divided = std::string(68, 'a') + "\r\nb c";
  EXPECT_EQ(read(divided, {.chunk_bytes = 4}), Texts{std::string(68, 'a') + "\nb c"});
}

TEST(TextChunks, HoldOnlyAChunkOfALongDocument) {
  const Scratch scratch;
  std::string text;
  while (text.size() < 300000) text += "some words of a long document\n";
  const std::string path = scratch.write("long.txt", text);
  const auto reader = make_text_reader(path, {.chunk_bytes = 4096});
  Chunk chunk;
  int64_t chunks = 0;
  int64_t last = 0;
  for (; reader->next(chunk); ++chunks) {
    EXPECT_LE(chunk.text.size(), 4096u * 5 / 4 + 64);
    EXPECT_GT(chunk.bytes_read, last);
    last = chunk.bytes_read;
  }
  EXPECT_GT(chunks, 70);
  EXPECT_EQ(last, 300000);
}

TEST(TextChunks, AreCutOnlyWhereTheyMayBe) {
  const Scratch scratch;
  const std::string path = scratch.write("a.txt", "one two;three four;" + std::string(200, ' '));
  const auto reader = make_text_reader(path, {.chunk_bytes = 1, .is_split_point = [](char before, char) { return before == ';'; }});
  Chunk chunk;
  ASSERT_TRUE(reader->next(chunk));
  EXPECT_EQ(chunk.text, "one two;");
  ASSERT_TRUE(reader->next(chunk));
  EXPECT_EQ(chunk.text, "three four;");
}

TEST(TextChunks, AreTheDocumentsOfATextReadWhole) {
  const Scratch scratch;
  const std::string text = std::string(3 << 20, 'a') + " b";
  const Documents documents = read_text(scratch.write("a.txt", "one\n<|endoftext|>\n" + text));
  ASSERT_EQ(documents.size(), 2);
  EXPECT_EQ(documents[0], "one");
  EXPECT_EQ(documents[1], text);
  EXPECT_NE(refusal([&] { read_text(scratch.path("none.txt")); }).find("none.txt"), std::string::npos);
}

TEST(TextChunks, AcceptUtf8AndAFewWrongBytes) {
  const std::string german =
      "Gr\xc3\xbc\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x8c\x8d";
  EXPECT_EQ(read(german), Texts{german});
  const std::string old_encoding =
      "Gr\xfc\xdf"
      "e aus der alten Zeit, lange vor Unicode";
  EXPECT_EQ(read(old_encoding), Texts{old_encoding});
}

TEST(TextChunks, NameTheEncodingOfTextInAnotherOne) {
  const Scratch scratch;
  const auto says = [&](const std::string& path) { return refusal([&] { texts_of(*make_text_reader(path, {})); }); };
  std::string text;
  for (int i = 0; i < 20; ++i) text += "Gr\xfc\xdf Gott, sch\xf6ner fremder Mann.\n";
  const std::string latin = scratch.write("latin.txt", text);
  EXPECT_EQ(says(latin), "data.path = " + latin + ": is ISO-8859-1; Cairn reads UTF-8. Convert it: iconv -f ISO-8859-1 -t UTF-8 " + latin +
                             " > NEW.txt");
  EXPECT_NE(says(scratch.write("windows.txt", text + "\x93Nein\x94")).find("is WINDOWS-1252;"), std::string::npos);
  EXPECT_EQ(texts_of(*make_text_reader(scratch.write("mixed.txt", text + "Gr\xc3\xbc\xc3\x9f"), {})).size(), 1u)
      << "UTF-8 with some wrong bytes";
}

TEST(TextChunks, RefuseEachFileThatIsNoText) {
  const Scratch scratch;
  const auto says = [&](const std::string& path, const ChunkOptions& options = {}) {
    return refusal([&] { texts_of(*make_text_reader(path, options)); });
  };
  const std::string nul = scratch.write("nul.bin", std::string("ELF\x02\0abc", 8));
  EXPECT_EQ(says(nul), "data.path = " + nul + ": a binary file (a NUL byte at offset 4); give a plain UTF-8 text file");
  const std::string late = scratch.write("late.txt", std::string(9999, 'a') + " b" + std::string(1, '\0'));
  EXPECT_EQ(says(late, {.chunk_bytes = 100}),
            "data.path = " + late + ": a binary file (a NUL byte at offset 10001); give a plain UTF-8 text file");
  const std::string noise = scratch.write("noise.txt", "ab\xff\xfe\x80\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80");
  EXPECT_EQ(says(noise),
            "data.path = " + noise + ": a binary file (86 % of it is not UTF-8, first at offset 2); give a plain UTF-8 text file");
  const std::string markers = scratch.write("markers.txt", "<|endoftext|>\n<|endoftext|>");
  EXPECT_EQ(says(markers), "data.path = " + markers + ": nothing but <|endoftext|> markers; give a file with text in it");
  const std::string word = scratch.write("word.txt", std::string(5000, 'a'));
  EXPECT_EQ(says(word, {.chunk_bytes = 100, .line_bytes = 1000}),
            "data.path = " + word +
                ": no place to cut in more than data.line_bytes = 1000 from offset 0 on: no space, or the tokenizer takes documents only "
                "whole; put <|endoftext|> between documents, or raise data.line_bytes");
  EXPECT_EQ(texts_of(*make_text_reader(word, {.chunk_bytes = 100, .line_bytes = 10000})), Texts{std::string(5000, 'a')});
}

}  // namespace
}  // namespace cairn::data
