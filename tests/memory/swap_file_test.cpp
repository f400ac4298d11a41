#include "memory/swap_file.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const SwapOptions& options, const base::Disk& disk = base::real_disk()) {
  base::Log log = base::Log::quiet();
  return message_of([&] { SwapFile(options, log, disk); });
}

TEST(SwapFile, LivesUnderTheNameOfItsRunAndGoesWithIt) {
  const DiskFolder folder;
  base::Log log = base::Log::quiet();
  {
    const SwapFile file({.folder = folder.path() / "new", .run_id = "run_1-a", .rank = 3, .bytes = kMiB + 5}, log);
    EXPECT_EQ(file.path(), folder.path() / "new" / "cairn-swap-run_1-a-3.data");
    EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(file.path())), kMiB);
    EXPECT_EQ(file.budget().capacity(), kMiB);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "new" / "cairn-swap-run_1-a-3.data"));
}

TEST(SwapFile, RefusesNamesThatCouldBePaths) {
  const DiskFolder folder;
  for (const char* name : {"", "../x", "a/b", "a b", "a.b"})
    EXPECT_EQ(refusal({.folder = folder.path(), .run_id = name, .bytes = kMiB}),
              std::string("bad_input: run id \"") + name + "\": must be 1 to 64 letters, digits, '-' or '_'");
}

TEST(SwapFile, RefusesMemoryFileSystems) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no memory file system here";
  EXPECT_EQ(refusal({.folder = "/dev/shm", .run_id = "x", .bytes = kMiB}),
            "bad_input: memory.disk_path = /dev/shm: it is on a tmpfs, whose files are in memory. Choose a folder on a disk.");
}

TEST(SwapFile, RefusesADiskWithoutRoomAndNamesOtherRuns) {
  const DiskFolder folder;
  base::Log log = base::Log::quiet();
  const SwapFile other({.folder = folder.path(), .run_id = "other", .rank = 1, .bytes = 2 * kMiB}, log);
  const base::FaultyDisk small({.free_bytes = 3 * kMiB});
  EXPECT_EQ(refusal({.folder = folder.path(), .run_id = "mine", .bytes = 4 * kMiB}, small),
            "bad_input: memory.disk_budget = 4.00 MiB: " + folder.path().string() +
                " has 3.00 MiB free; swap files there: cairn-swap-other-1.data 2.00 MiB. Lower it, free space, or choose another "
                "memory.disk_path.");
  EXPECT_EQ(refusal({.folder = folder.path(), .run_id = "mine", .bytes = 3 * kMiB}, small), "no error");
  EXPECT_THAT(refusal({.folder = folder.path(), .run_id = "mine", .bytes = int64_t{1} << 60}), HasSubstr("Lower it, free space"));
  EXPECT_THAT(folder.names(), ElementsAre("cairn-swap-other-1.data"));
}

TEST(SwapFile, RefusesDisksWithoutDirectIo) {
  struct Buffered final : base::Disk {
    int create(const std::filesystem::path& path) const override { return base::real_disk().create(path); }
    int append(const std::filesystem::path& path) const override { return base::real_disk().append(path); }
    int open_shared(const std::filesystem::path& path) const override { return base::real_disk().open_shared(path); }
    int64_t write(int file, std::span<const std::byte> bytes) const override { return base::real_disk().write(file, bytes); }
    int64_t write_at(int file, std::span<const std::byte> bytes, int64_t at) const override {
      return base::real_disk().write_at(file, bytes, at);
    }
    int resize(int file, int64_t bytes) const override { return base::real_disk().resize(file, bytes); }
    int sync(int file) const override { return base::real_disk().sync(file); }
    int close(int file) const override { return base::real_disk().close(file); }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override {
      return base::real_disk().rename(from, to);
    }
    int remove(const std::filesystem::path& path) const override { return base::real_disk().remove(path); }
    int sync_folder(const std::filesystem::path& folder) const override { return base::real_disk().sync_folder(folder); }
    int64_t free_bytes(const std::filesystem::path& folder) const override { return base::real_disk().free_bytes(folder); }
  };
  const DiskFolder folder;
  EXPECT_THAT(refusal({.folder = folder.path(), .run_id = "x", .bytes = kMiB}, Buffered()),
              HasSubstr("cairn-swap-x-0.data cannot be opened for direct I/O: Invalid argument. Choose a folder on a disk."));
}

TEST(SwapFile, IsLockedWhileItsProcessRuns) {
  const DiskFolder folder;
  base::Log log = base::Log::quiet();
  const SwapFile file({.folder = folder.path(), .run_id = "run", .bytes = kMiB}, log);
  EXPECT_EQ(refusal({.folder = folder.path(), .run_id = "run", .bytes = kMiB}),
            "bad_input: memory.disk_path = " + folder.path().string() +
                ": another process of this run uses cairn-swap-run-0.data. End it, or give this run another name.");
  EXPECT_EQ(remove_swap_files(folder.path(), "run", log), 0);
  EXPECT_TRUE(std::filesystem::exists(file.path()));
}

constexpr int kRecords = 5;
constexpr int64_t kRecordBytes = 150'001;

// Writes versions of a few records until it is killed, and says which are on disk.
[[noreturn]] void write_until_killed(const DiskFolder& folder, int pipe, BackEnd back_end) {
  Rig rig(folder, {.back_end = back_end, .block_bytes = 8192});
  std::vector<RecordId> ids;
  for (int i = 0; i < kRecords; ++i) ids.push_back(rig.store.add("r" + std::to_string(i), kRecordBytes, base::MemoryUse::parameters));
  for (;;) {
    std::vector<WriteHandle> writes;
    for (const RecordId id : ids) writes.push_back(rig.write(id));
    for (size_t i = 0; i < writes.size(); ++i) {
      writes[i].wait();
      const uint64_t said[2] = {i, writes[i].version()};
      if (::write(pipe, said, sizeof said) != sizeof said) ::_exit(1);
    }
  }
}

class KilledWriter : public OnBackEnds {};
INSTANTIATE_TEST_SUITE_P(All, KilledWriter, ::testing::Values(BackEnd::threads, BackEnd::io_uring), name_of_back_end);

TEST_P(KilledWriter, LeavesRecordsThatAreWholeOrKnownToBeTornAndAFileThatItsRunRemoves) {
  const DiskFolder folder;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t writer = ::fork();
  if (writer == 0) write_until_killed(folder, ends[1], GetParam());
  ::close(ends[1]);
  std::vector<uint64_t> on_disk(kRecords);
  uint64_t said[2];
  for (int i = 0; i < 43 && ::read(ends[0], said, sizeof said) == sizeof said; ++i) on_disk[said[0]] = said[1];
  ::kill(writer, SIGKILL);
  ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
  while (::read(ends[0], said, sizeof said) == sizeof said) on_disk[said[0]] = said[1];
  ::close(ends[0]);

  const std::string all = base::read_file(folder.path() / "cairn-swap-test-0.data", 64 * kMiB);
  for (int record = 0; record < kRecords; ++record) {
    std::vector<std::byte> pattern(kRecordBytes);
    std::string found;
    for (uint64_t version = 1; version <= on_disk[static_cast<size_t>(record)] + 1; ++version) {
      fill(pattern, record, version);
      const Seal seal{.run = base::checksum("test"),
                      .record = base::checksum("r" + std::to_string(record)),
                      .version = version,
                      .length = static_cast<uint64_t>(kRecordBytes),
                      .checksum = base::checksum(pattern)};
      const std::string_view whole(all.data() + record * sealed_bytes(kRecordBytes), sealed_bytes(kRecordBytes));
      if (find_fault(base::as_bytes(whole), seal).empty()) {
        EXPECT_TRUE(found.empty());
        EXPECT_EQ(std::memcmp(whole.data(), pattern.data(), pattern.size()), 0);
        EXPECT_GE(version, on_disk[static_cast<size_t>(record)]);  // what was reported is there, unless the next one tore it
        found = std::to_string(version);
      }
    }
  }

  base::Log log = base::Log::capture();
  { const SwapFile other({.folder = folder.path(), .run_id = "other", .bytes = kMiB}, log); }
  EXPECT_THAT(folder.names(), ElementsAre("cairn-swap-test-0.data"));  // not its file
  EXPECT_EQ(remove_swap_files(folder.path(), "te", log), 0);
  EXPECT_TRUE(log.lines().empty());
  { const SwapFile again({.folder = folder.path(), .run_id = "test", .bytes = kMiB}, log); }
  EXPECT_TRUE(folder.names().empty());
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("cairn-swap-test-0.data (32.0 MiB), which a process of this run left behind")));
}

TEST(SwapFile, OfRanksThatDoNotComeBackIsRemovedWithTheRun) {
  const DiskFolder folder;
  base::Log log = base::Log::quiet();
  for (const char* name : {"cairn-swap-run-0.data", "cairn-swap-run-12.data", "cairn-swap-run-b-0.data", "cairn-swap-run-x.data"})
    std::ofstream(folder.path() / name) << "12345";
  EXPECT_EQ(remove_swap_files(folder.path(), "run", log), 10);
  EXPECT_THAT(folder.names(), ::testing::UnorderedElementsAre("cairn-swap-run-b-0.data", "cairn-swap-run-x.data"));
}

}  // namespace
}  // namespace cairn::memory
