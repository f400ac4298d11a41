#include "base/log_file.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LogFile, AddsToWhatIsThere) {
  const harness::ScratchFolder folder;
  folder.file("x", "one\n");
  LogFile file(folder / "x", real_disk(), {}, "header\n");
  file.append(as_bytes("two\n"));
  EXPECT_EQ(folder.text_of("x"), "one\ntwo\n");
}

TEST(LogFile, WarnsOnceThatTheDiskIsFullAndHasNoGapAfterwards) {
  const harness::ScratchFolder folder;
  FaultyDisk disk({.full_after_bytes = 6, .free_bytes = 0});
  std::vector<std::string> warned;
  LogFile file(folder / "x", disk, [&](const std::string& text) { warned.push_back(text); });
  for (const char* line : {"one\n", "two\n", "three\n"}) file.append(as_bytes(line));
  EXPECT_EQ(folder.text_of("x"), "one\ntw");  // what the disk still took
  EXPECT_THAT(warned, ElementsAre(HasSubstr("disk full writing " + (folder / "x").string() + ": 2 B needed, 0 B free")));
  disk.recover();
  file.append(as_bytes("four\n"));
  EXPECT_EQ(folder.text_of("x"), "one\ntwo\nthree\nfour\n");
  EXPECT_EQ(warned.size(), 1u);
  EXPECT_EQ(file.pieces_lost(), 0);
}

TEST(LogFile, KeepsABoundedAmountInMemory) {
  const harness::ScratchFolder folder;
  FaultyDisk disk({.full_after_bytes = 0});
  LogFile file(folder / "x", disk);
  const std::string piece(LogFile::kWaitingMax / 4, 'x');
  for (int i = 0; i < 7; ++i) file.append(as_bytes(piece));
  EXPECT_EQ(file.pieces_lost(), 3);
  disk.recover();
  file.append(as_bytes("end"));  // lost too: nothing was written before it came
  file.append(as_bytes("end"));
  EXPECT_EQ(folder.text_of("x").size(), 4 * piece.size() + 3);
}

TEST(LogFile, BeginsAgainWithItsHeaderWhenItsFolderWasDeleted) {
  const harness::ScratchFolder folder;
  std::vector<std::string> warned;
  std::filesystem::create_directory(folder / "run");
  LogFile file(
      folder / "run/x", real_disk(), [&](const std::string& text) { warned.push_back(text); }, "header\n");
  file.append(as_bytes("one\n"));
  EXPECT_EQ(folder.text_of("run/x"), "header\none\n");
  std::filesystem::remove_all(folder / "run");
  file.append(as_bytes("two\n"));
  EXPECT_EQ(folder.text_of("run/x"), "header\ntwo\n");
  EXPECT_THAT(warned, ElementsAre(HasSubstr("was deleted: it begins again here")));
}

TEST(LogFile, BeginsAgainWithAWholePieceWhereTheDiskTookAPartOfIt) {
  const harness::ScratchFolder folder;
  std::filesystem::create_directory(folder / "run");
  FaultyDisk disk({.full_after_bytes = 13});
  LogFile file(folder / "run/x", disk, {}, "header\n");
  for (const char* line : {"one\n", "two\n"}) file.append(as_bytes(line));
  EXPECT_EQ(folder.text_of("run/x"), "header\none\ntw");
  std::filesystem::remove_all(folder / "run");
  disk.recover();
  file.append(as_bytes("three\n"));
  EXPECT_EQ(folder.text_of("run/x"), "header\ntwo\nthree\n");
}

TEST(LogFile, BeginsAgainWhereAnotherFileHasItsName) {
  const harness::ScratchFolder folder;
  LogFile file(folder / "x");
  file.append(as_bytes("one\n"));
  std::filesystem::rename(folder / "x", folder / "moved");
  folder.file("x", "other\n");
  file.append(as_bytes("two\n"));
  EXPECT_EQ(folder.text_of("x"), "other\ntwo\n");
  EXPECT_EQ(folder.text_of("moved"), "one\n");
}

TEST(LogFile, SaysHowManyPiecesWereLost) {
  const harness::ScratchFolder folder;
  FaultyDisk disk({.full_after_bytes = 0});
  std::vector<std::string> warned;
  LogFile file(folder / "x", disk, [&](const std::string& text) { warned.push_back(text); });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(file.append(as_bytes(std::string(LogFile::kWaitingMax / 4, 'x'))));
  EXPECT_FALSE(file.append(as_bytes("lost")));
  EXPECT_TRUE(file.append(as_bytes("kept"), "the first half of it"));
  disk.recover();
  EXPECT_FALSE(file.append(as_bytes("lost")));
  file.append(as_bytes("end"));
  EXPECT_THAT(warned, ElementsAre(HasSubstr("disk full writing"), HasSubstr(": 2 pieces lost while it could not be written")));
}

TEST(LogFile, SaysWhyItCannotBeOpened) {
  const harness::ScratchFolder folder;
  const Error error = error_of([&] { LogFile file(folder / "missing/x"); });
  EXPECT_EQ(error.kind(), Error::Kind::disk);
  EXPECT_THAT(error.what(), HasSubstr("cannot open " + (folder / "missing/x").string()));
}

}  // namespace
}  // namespace cairn::base
