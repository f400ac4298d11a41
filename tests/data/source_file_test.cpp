#include "data/corpus/source_file.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/corpus/llmc_file.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<SourceFile>& files) {
  std::vector<std::string> names;
  for (const SourceFile& file : files) names.push_back(std::filesystem::path(file.path).filename().string() + ":" + name(file.format));
  return names;
}

TEST(FindFiles, TellsTheFormatByContentAndName) {
  EXPECT_EQ(detect_format("x.jsonl", "{"), Format::jsonl);
  EXPECT_EQ(detect_format("x.NDJSON", "{"), Format::jsonl);
  EXPECT_EQ(detect_format("x.json", " \n[{"), Format::json);
  EXPECT_EQ(detect_format("x.json", "\xef\xbb\xbf[{"), Format::json);
  EXPECT_EQ(detect_format("x.json", "{\"text\""), Format::jsonl);
  EXPECT_EQ(detect_format("x.txt", "[1, 2]"), Format::text);
  EXPECT_EQ(detect_format("README", "words"), Format::text);
  EXPECT_EQ(detect_format("x.bin", "cairntk1"), Format::cairn);
  EXPECT_EQ(detect_format("anything", llmc_bytes(tokens_in_memory({{{1, 2}}}))), Format::llmc);
  EXPECT_EQ(detect_format("anything", llmc_bytes(tokens_in_memory({{{1, 2}}}, 100000))), Format::llmc);
}

TEST(FindFiles, RefusesForeignFormatsWithAWayOut) {
  const auto says = [](const std::string& path, std::string_view head) { return refusal([&] { detect_format(path, head); }); };
  EXPECT_EQ(says("a.parquet", "PAR1\x15"),
            "a.parquet: a parquet file, which is not read; convert it: python3 -c \"import pandas, sys; "
            "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" IN.parquet OUT.jsonl");
  EXPECT_EQ(says("a.jsonl.gz", "\x1f\x8b\x08"), "a.jsonl.gz: compressed with gzip; unpack it: gunzip -k FILE");
  EXPECT_EQ(says("a.jsonl.zst", "\x28\xb5\x2f\xfd"), "a.jsonl.zst: compressed with zstd; unpack it: zstd -d FILE");
  EXPECT_EQ(says("a.zip", "PK\x03\x04"), "a.zip: a zip archive; unpack it: unzip FILE");
  EXPECT_EQ(says("a.arrow", "ARROW1"), "a.arrow: an Arrow file, which is not read; convert it to JSON lines");
  EXPECT_THAT(says("a.bin", "BIN.TOK\n"), HasSubstr("a token file of LLMQ, which is not read"));
  EXPECT_EQ(says("a.bin", "ELF"),
            "a.bin: a binary file that is neither a token shard of llm.c (it would begin with 20240520 or 20240801) nor one of Cairn "
            "(\"cairntk1\"); give a plain UTF-8 text file, or say what it is with data.format");
}

TEST(FindFiles, RefusesTablesWithTheCommandThatConvertsThem) {
  EXPECT_EQ(
      refusal([] { detect_format("a.CSV", "text,label"); }),
      "a.CSV: a table (CSV), which is not read as text. Convert it: python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row "
      "in csv.DictReader(sys.stdin)]\" < a.CSV > NEW.jsonl, and name its column with data.text_field");
  EXPECT_THAT(refusal([] { detect_format("a.tsv", "text\tlabel"); }), HasSubstr("csv.DictReader(sys.stdin, delimiter='\\t')"));
  const Scratch scratch;
  EXPECT_EQ(find_files(scratch.write("a.csv", "prose, really"), "text", "data.path").at(0).format, Format::text);
}

TEST(FindFiles, NamesTheEncodingOfWideText) {
  const Scratch scratch;
  const auto wide = [](std::string_view text, bool little) {
    std::string bytes;
    for (const char c : text) bytes += little ? std::string{c, '\0'} : std::string{'\0', c};
    return bytes;
  };
  const auto says = [&](const std::string& name, const std::string& bytes) {
    return refusal([&] { find_files(scratch.write(name, bytes), "auto", "data.path"); });
  };
  EXPECT_EQ(says("a.txt", "\xff\xfe" + wide("Once", true)), "data.path = " + scratch.path("a.txt") +
                                                                ": is UTF-16; Cairn reads UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 " +
                                                                scratch.path("a.txt") + " > NEW.txt");
  EXPECT_THAT(says("b.jsonl", "\xfe\xff" + wide("{}", false)), HasSubstr("is UTF-16; "));
  EXPECT_THAT(says("c.txt", wide("Once upon a time", true)), HasSubstr("is UTF-16LE; "));
  EXPECT_THAT(says("d.txt", wide("Once upon a time", false)), HasSubstr("is UTF-16BE; "));
  EXPECT_THAT(says("e.txt", std::string("\xff\xfe\0\0O\0\0\0", 8)), HasSubstr("is UTF-32; "));
}

TEST(FindFiles, SaysWhichFilesOfAFolderAreNotRead) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch.path("b"));
  for (const char* name : {"a.txt", "b/x.csv", "c.py", "d.log", ".hidden"}) scratch.write(name, "x");
  scratch.write("empty.txt", "");
  std::vector<std::string> skipped;
  EXPECT_THAT(names_of(find_files(scratch.path(), "auto", "data.path", &skipped)), ElementsAre("a.txt:text"));
  EXPECT_EQ(describe_skipped("data.path = d", skipped),
            "data.path = d: 4 files in the folder are not read, by name or because they are empty: b/x.csv, c.py, d.log, …");
  EXPECT_EQ(describe_skipped("d", {"x.py"}), "d: 1 file in the folder is not read, by name or because it is empty: x.py");
  EXPECT_EQ(describe_skipped("d", {}), "");
}

TEST(FindFiles, NamesALinkAsItIsInTheFolder) {
  const Scratch scratch, elsewhere;
  scratch.write("a.txt", "x");
  std::filesystem::create_symlink(elsewhere.write("script.py", "x"), scratch.path("link.py"));
  std::vector<std::string> skipped;
  find_files(scratch.path(), "auto", "data.path", &skipped);
  EXPECT_THAT(skipped, ElementsAre("link.py"));
}

TEST(FindFiles, TakesFoldersInOrderAndPatterns) {
  const Scratch scratch;
  for (const char* folder : {"b", "b/c", ".hidden", "empty"}) std::filesystem::create_directory(scratch.path(folder));
  scratch.write("z.txt", "z");
  scratch.write("b/a.jsonl", "{}");
  scratch.write("b/c/list.json", "[]");
  scratch.write("b/script.py", "print()");
  scratch.write("b/none.txt", "");
  scratch.write(".hidden/x.txt", "x");
  scratch.write(".y.txt", "y");
  EXPECT_THAT(names_of(find_files(scratch.path(), "auto", "data.path")), ElementsAre("a.jsonl:jsonl", "list.json:json", "z.txt:text"));
  EXPECT_THAT(names_of(find_files(scratch.path("b/*.jsonl"), "auto", "data.path")), ElementsAre("a.jsonl:jsonl"));
  EXPECT_THAT(names_of(find_files(scratch.path("[bz]*"), "auto", "data.path")), ElementsAre("z.txt:text"));
  EXPECT_THAT(names_of(find_files(scratch.path("b/script.py"), "auto", "data.path")), ElementsAre("script.py:text"));
  EXPECT_THAT(names_of(find_files(scratch.path("b/c/list.json"), "text", "data.path")), ElementsAre("list.json:text"));
  const std::string odd = scratch.write("what[1].txt", "a name with signs of a pattern");
  EXPECT_EQ(find_files(odd, "auto", "data.path").at(0).path, odd);
}

TEST(FindFiles, RefusesWhatIsNotThere) {
  const Scratch scratch;
  const auto says = [&](const std::string& path, const std::string& format = "auto") {
    return refusal([&] { find_files(path, format, "data.path"); });
  };
  const std::string missing = scratch.path("missing.txt");
  EXPECT_EQ(says(missing),
            "data.path = " + missing +
                ": no such file; give a file, a folder or a pattern like texts/*.jsonl, or no data.path for the built-in stories");
  EXPECT_EQ(says(scratch.path("*.txt")), "data.path = " + scratch.path("*.txt") + ": no file matches this pattern");
  std::filesystem::create_directory(scratch.path("folder"));
  EXPECT_EQ(says(scratch.path("folder")),
            "data.path = " + scratch.path("folder") +
                ": a folder without data files; files in a folder are read if their names end in .txt, .text, .md, .jsonl, .ndjson, .json, "
                ".bin or .tokens: name others one by one, or by a pattern");
  const std::string empty = scratch.write("empty.txt", "");
  EXPECT_EQ(says(empty),
            "data.path = " + empty + ": the file is empty; give a file with text in it, or no data.path for the built-in stories");
  EXPECT_EQ(says(scratch.write("x.txt", "x"), "jsonll"),
            "unknown data.format \"jsonll\": did you mean \"jsonl\"? (data.path = " + scratch.path("x.txt") + ")");
}

}  // namespace
}  // namespace cairn::data
