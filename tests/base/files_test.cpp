#include "base/files.h"

#include <algorithm>
#include <filesystem>
#include <signal.h>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/faulty_disk.h"
#include "base/files/mapped_file.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

TEST(ReadFile, ReturnsEveryByte) {
  const harness::ScratchFolder folder;
  const std::string bytes("a\0b\r\n\xff", 6);
  EXPECT_EQ(read_file(folder.file("x", bytes), 6), bytes);
  EXPECT_EQ(read_file(folder.file("empty", ""), 0), "");
}

TEST(ReadFile, SaysWhyItCannot) {
  const harness::ScratchFolder folder;
  const std::string missing = (folder / "missing").string();
  EXPECT_EQ(message_of([&] { read_file(missing, 10); }), "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(error_of([&] { read_file(missing, 10); }).kind(), Error::Kind::bad_input);
  EXPECT_EQ(message_of([&] { read_file(folder.path(), 10); }), "cannot read " + folder.path().string() + ": it is a folder, not a file");
  const std::string big = folder.file("big", "12345").string();
  EXPECT_EQ(message_of([&] { read_file(big, 4); }), "cannot read " + big + ": it has 5 B, at most 4 B are read here");
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { read_file(pipe, 4); }), "cannot read " + pipe + ": it is not a regular file");
}

TEST(WriteAtomically, ReplacesTheWholeFile) {
  const harness::ScratchFolder folder;
  write_atomically(folder / "x", "a long first text");
  write_atomically(folder / "x", "second");
  EXPECT_EQ(folder.text_of("x"), "second");
  EXPECT_EQ(folder.names().size(), 1u);  // no temporary left
}

TEST(WriteAtomically, GetsThroughShortWrites) {
  const harness::ScratchFolder folder;
  const FaultyDisk disk({.longest_write_bytes = 3});
  write_atomically(folder / "x", "more than three bytes", disk);
  EXPECT_GT(disk.fired(), 5);
  EXPECT_EQ(folder.text_of("x"), "more than three bytes");
}

TEST(WriteAtomically, KeepsTheOldFileOnAFullDisk) {
  const harness::ScratchFolder folder;
  const std::string path = folder.file("x", "old").string();
  const FaultyDisk disk({.full_after_bytes = 5, .free_bytes = 3 << 20});
  const Error error = error_of([&] { write_atomically(path, std::string(12 << 20, 'n'), disk); });
  EXPECT_EQ(error.kind(), Error::Kind::disk);
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_EQ(error.what(), "disk full writing " + path + ": 12.0 MiB needed, 3.00 MiB free; free space or choose another --out");
  EXPECT_GE(disk.fired(), 1);
  EXPECT_EQ(folder.text_of("x"), "old");
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(WriteAtomically, KeepsTheOldFileOnEveryOtherFault) {
  const DiskFaults faults[] = {
      {.error_after_bytes = 2, .free_bytes = 2048}, {.sync_fails = true, .free_bytes = 2048}, {.rename_fails = true, .free_bytes = 2048}};
  const char* said[] = {"cannot write PATH: Input/output error (2.00 KiB free)", "cannot write PATH: Input/output error (2.00 KiB free)",
                        "cannot replace PATH: Permission denied (2.00 KiB free)"};
  for (int i = 0; i < 3; ++i) {
    const harness::ScratchFolder folder;
    const std::string path = folder.file("x", "old").string();
    const FaultyDisk disk(faults[i]);
    std::string expected = said[i];
    expected.replace(expected.find("PATH"), 4, path);
    EXPECT_EQ(message_of([&] { write_atomically(path, "newer", disk); }), expected);
    EXPECT_EQ(disk.fired(), 1);
    EXPECT_EQ(folder.text_of("x"), "old");
    EXPECT_EQ(folder.names().size(), 1u);
  }
}

TEST(WriteAtomically, LeavesTheOldFileWhereTheProcessDiesBeforeTheRename) {
  const harness::ScratchFolder folder;
  const std::string path = folder.file("x", "old").string();
  const FaultyDisk disk({.crash_before_rename = true});
  EXPECT_THROW(write_atomically(path, "newer", disk), Error);
  EXPECT_EQ(folder.text_of("x"), "old");
  EXPECT_EQ(folder.names().size(), 2u);  // what a crash leaves: a hidden .part beside it
  const auto names = folder.names();
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.starts_with(".x.") && n.ends_with(".part"); }));
}

TEST(WriteAtomically, NamesAFolderThatIsNotThere) {
  const harness::ScratchFolder folder;
  const std::string path = (folder / "no/such/x").string();
  EXPECT_TRUE(message_of([&] { write_atomically(path, "x"); }).starts_with("cannot create " + path + ": No such file or directory"));
}

TEST(FileWriter, ShowsNothingBeforeCommit) {
  const harness::ScratchFolder folder;
  {
    FileWriter writer(folder / "x");
    writer.write("half");
    EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(FileWriter, CountsAndSumsWhatItWrote) {
  const harness::ScratchFolder folder;
  FileWriter writer(folder / "x");
  writer.write("one");
  writer.write("");
  writer.write("two");
  writer.commit();
  EXPECT_EQ(writer.bytes_written(), 6);
  EXPECT_EQ(writer.checksum(), checksum("onetwo"));
  EXPECT_EQ(folder.text_of("x"), "onetwo");
  EXPECT_EQ(error_of([&] { writer.write("late"); }).kind(), Error::Kind::broken_invariant);
  EXPECT_EQ(error_of([&] { writer.commit(); }).kind(), Error::Kind::broken_invariant);
}

TEST(FileWriter, LetsTwoWritersOfOnePathBothFinish) {
  const harness::ScratchFolder folder;
  FileWriter a(folder / "x"), b(folder / "x");
  a.write("from a");
  b.write("from b");
  a.commit();
  b.commit();
  EXPECT_EQ(folder.text_of("x"), "from b");
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(MakeFolder, MakesParentsAndMindsWhatIsThere) {
  const harness::ScratchFolder folder;
  make_folder(folder / "a/b/c");
  make_folder(folder / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  const std::string path = folder.file("file", "").string();
  const std::string message = message_of([&] { make_folder(path); });
  EXPECT_TRUE(message.starts_with("cannot make folder " + path + ": ")) << message;
  EXPECT_EQ(error_of([&] { make_folder(path + "/under"); }).kind(), Error::Kind::disk);
}

TEST(FreeBytes, AsksTheNearestFolderThatExists) {
  const harness::ScratchFolder folder;
  EXPECT_GT(free_bytes(folder.path()), 0);
  EXPECT_GT(free_bytes(folder / "not/yet/there"), 0);
}

TEST(FileWriter, UsesATemporaryNameThatCannotBeGuessed) {
  const harness::ScratchFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 2; ++i) {
    const FileWriter writer(folder / "x");
    for (const std::string& name : folder.names()) names.push_back(name);
  }
  ASSERT_EQ(names.size(), 2u);
  EXPECT_NE(names[0], names[1]);
  for (const std::string& name : names) EXPECT_EQ(name.size(), std::string(".x.0123456789abcdef.part").size()) << name;
}

TEST(Disk, DoesNotWriteThroughALinkThatSomebodyPlanted) {
  const harness::ScratchFolder folder;
  const auto precious = folder.file("precious", "text");
  std::filesystem::create_symlink(precious, folder / "link");
  EXPECT_EQ(real_disk().create(folder / "link"), -1);
  EXPECT_EQ(real_disk().create(precious), -1);
  EXPECT_EQ(folder.text_of("precious"), "text");
}

TEST(TemporaryFolder, IsNewPrivateAndGoneAtTheEnd) {
  std::filesystem::path first;
  {
    const TemporaryFolder one, other;
    first = one.path();
    EXPECT_NE(one.path(), other.path());
    struct stat facts {};
    ASSERT_EQ(::stat(first.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
    write_atomically(first / "deep", "text");
  }
  EXPECT_FALSE(std::filesystem::exists(first));
}

// A death test: the child touches a page that its file no longer has.
TEST(MappedFile, ThatBecomesShorterEndsTheProgramWithItsNameAndCodeTwo) {
  const harness::ScratchFolder folder;
  const std::string path = folder.file("tokens.bin", std::string(20'000, 'x')).string();
  const auto read_after_cut = [&] {
    const auto file = MappedFile::open(path);
    std::filesystem::resize_file(path, 100);
    const volatile std::byte* bytes = file->bytes().data();
    (void)bytes[15'000];
  };
  EXPECT_EXIT(read_after_cut(), testing::ExitedWithCode(2), "tokens.bin: became shorter while it was in use");
}

TEST(MappedFile, OtherBusErrorsKeepTheirEffect) {
  const harness::ScratchFolder folder;
  const std::string path = folder.file("tokens.bin", "some tokens").string();
  const auto raise_it = [&] {
    const auto file = MappedFile::open(path);
    ::raise(SIGBUS);  // once: a signal that is sent is not repeated
  };
  const auto by_signal = [](int status) {  // sanitizers handle it themselves and exit with 1
    return testing::KilledBySignal(SIGBUS)(status) || testing::ExitedWithCode(1)(status);
  };
  EXPECT_EXIT(raise_it(), by_signal, "");
}

}  // namespace
}  // namespace cairn::base
