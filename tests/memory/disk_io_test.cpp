#include "memory/disk/disk_io.h"

#include <fcntl.h>
#include <fstream>
#include <future>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/faulty_disk.h"
#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int64_t kPiece = 16 * kPageBytes;

// A file of some pieces, and a pool with a buffer for each.
struct RawDisk {
  explicit RawDisk(DiskIoOptions options, Time time = Time::real, int pieces = 64, const base::Disk& disk = base::real_disk())
      : path((folder.path() / "raw").string()),
        clock(time == Time::real ? static_cast<const base::Clock&>(real) : stopped),
        pool("pool", pieces * kPiece) {
    io = std::make_unique<DiskIo>(options, clock, std::vector{pool.memory()}, disk);
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0644);
    if (file < 0 || ::fallocate(file, 0, 0, pieces * kPiece) != 0) throw std::runtime_error("no file for direct I/O");
  }
  ~RawDisk() {
    go_on();
    io.reset();
    ::close(file);
  }

  void go_on() {
    if (!ticking) ticking.emplace(stopped);
  }
  std::span<std::byte> piece(int index) { return pool.memory().subspan(static_cast<size_t>(index * kPiece), kPiece); }
  uint64_t start(bool write, int index, IoClass io_class, std::promise<DiskTransfer::Outcome>& outcome,
                 std::chrono::nanoseconds deadline = std::chrono::seconds(60)) {
    return io->submit({.file = file,
                       .path = path,
                       .write = write,
                       .bytes = piece(index),
                       .offset = index * kPiece,
                       .io_class = io_class,
                       .deadline = clock.now() + deadline,
                       .prepare = {},
                       .done = [this, &outcome, index](const DiskTransfer::Outcome& one) {
                         {
                           const std::lock_guard lock(mutex);
                           order.push_back(index);
                         }
                         outcome.set_value(one);
                       }});
  }
  DiskTransfer::Outcome run(bool write, int index, IoClass io_class = IoClass::states) {
    std::promise<DiskTransfer::Outcome> outcome;
    start(write, index, io_class, outcome);
    return outcome.get_future().get();
  }

  DiskFolder folder;
  std::string path;
  base::RealClock real;
  base::VirtualClock stopped;
  std::optional<Ticking> ticking;
  const base::Clock& clock;
  BufferPool pool;
  int file = -1;
  std::mutex mutex;
  std::vector<int> order;  // of the pieces that were done
  std::unique_ptr<DiskIo> io;
};

class DiskIoTest : public OnBackEnds {};
INSTANTIATE_TEST_SUITE_P(All, DiskIoTest, ::testing::Values(BackEnd::threads, BackEnd::io_uring), name_of_back_end);

TEST_P(DiskIoTest, ReadsWhatItWroteAndCountsIt) {
  RawDisk disk({.back_end = GetParam(), .block_bytes = 3 * kPageBytes});
  fill(disk.piece(0), 7, 1);
  EXPECT_FALSE(disk.run(true, 0, IoClass::write_back).error);
  fill(disk.piece(0), 0, 0);
  EXPECT_FALSE(disk.run(false, 0, IoClass::activations).error);
  EXPECT_TRUE(holds(disk.piece(0), 7, 1));
  const DiskCounters counters = disk.io->counters();
  EXPECT_EQ(counters.written[static_cast<size_t>(IoClass::write_back)], (DiskCounters::Row{1, kPiece}));
  EXPECT_EQ(counters.read[static_cast<size_t>(IoClass::activations)], (DiskCounters::Row{1, kPiece}));
  EXPECT_EQ(counters.bytes_read() + counters.bytes_written(), 2 * kPiece);
  EXPECT_GE(counters.depth_peak, 2);  // five blocks of a transfer are on their way together
  EXPECT_GT(counters.busy_s, 0);
}

TEST_P(DiskIoTest, LetsAParameterPassWhatIsWrittenBack) {
  RawDisk disk({.back_end = GetParam(), .aging = std::chrono::hours(1), .model = {.read_bytes_per_s = 40e6, .write_bytes_per_s = 40e6}},
               Time::stopped);
  std::vector<std::promise<DiskTransfer::Outcome>> outcomes(21);
  for (int i = 0; i < 20; ++i) disk.start(true, i, IoClass::write_back, outcomes[static_cast<size_t>(i)]);
  wait_until_busy(*disk.io);
  disk.start(false, 20, IoClass::parameters, outcomes[20]);
  disk.go_on();
  for (auto& outcome : outcomes) EXPECT_FALSE(outcome.get_future().get().error);
  EXPECT_EQ(disk.order[0], 0);   // it had begun
  EXPECT_EQ(disk.order[1], 20);  // first come, first served would make it the last
}

TEST_P(DiskIoTest, HoldsTheRateOfItsModel) {
  RawDisk disk({.back_end = GetParam(), .model = {.write_bytes_per_s = 80e6, .latency = milliseconds(2)}});
  std::vector<std::promise<DiskTransfer::Outcome>> outcomes(32);
  const auto begun = disk.clock.now();
  for (int i = 0; i < 32; ++i) disk.start(true, i, IoClass::states, outcomes[static_cast<size_t>(i)]);
  for (auto& outcome : outcomes) outcome.get_future().get();
  const double took = base::seconds(disk.clock.now() - begun), due = 32.0 * kPiece / 80e6 + 0.002;
  EXPECT_GE(took, due - 0.001);  // gaps up to 1 ms are not idle
  EXPECT_LE(took, 5);            // a busy machine; the model itself is exact (DiskShaper)
}

TEST_P(DiskIoTest, CancelsWhatHasNotBegunAndNothingElse) {
  RawDisk disk({.back_end = GetParam(), .depth = 1, .model = {.write_bytes_per_s = 40e6}}, Time::stopped);
  std::vector<std::promise<DiskTransfer::Outcome>> outcomes(3);
  const uint64_t first = disk.start(true, 0, IoClass::states, outcomes[0]);
  wait_until_busy(*disk.io);
  const uint64_t second = disk.start(true, 1, IoClass::states, outcomes[1]);
  const uint64_t third = disk.start(true, 2, IoClass::states, outcomes[2]);
  EXPECT_TRUE(disk.io->cancel(third));
  EXPECT_FALSE(disk.io->cancel(third));
  disk.go_on();
  const DiskTransfer::Outcome outcome = outcomes[2].get_future().get();
  EXPECT_EQ(outcome.error->kind(), Error::Kind::cancelled);
  EXPECT_FALSE(outcome.touched);
  EXPECT_THAT(outcome.error->what(), HasSubstr("cancelled: writing " + disk.path + " at offset 131072"));
  EXPECT_FALSE(outcomes[0].get_future().get().error);
  EXPECT_FALSE(disk.io->cancel(first));
  EXPECT_FALSE(outcomes[1].get_future().get().error);
  EXPECT_FALSE(disk.io->cancel(second));
  EXPECT_EQ(disk.io->counters().bytes_written(), 2 * kPiece);
  EXPECT_EQ(disk.io->counters().cancelled, 1);
}

TEST_P(DiskIoTest, GivesUpWhatDoesNotBeginBeforeItsDeadline) {
  RawDisk disk({.back_end = GetParam(), .depth = 1, .model = {.write_bytes_per_s = 2e6}}, Time::stopped);  // 33 ms each
  std::promise<DiskTransfer::Outcome> slow, late;
  disk.start(true, 0, IoClass::states, slow);
  wait_until_busy(*disk.io);
  disk.start(true, 1, IoClass::states, late, milliseconds(3));
  disk.stopped.advance_by(milliseconds(4));
  const DiskTransfer::Outcome outcome = late.get_future().get();
  EXPECT_THAT(outcome.error->what(), HasSubstr("writing " + disk.path + " at offset 65536: did not begin before its deadline"));
  EXPECT_FALSE(outcome.touched);
  disk.go_on();
  EXPECT_FALSE(slow.get_future().get().error);
}

TEST_P(DiskIoTest, EndsCleanlyWithTransfersOnTheirWay) {
  std::vector<std::promise<DiskTransfer::Outcome>> outcomes(30);
  {
    RawDisk disk({.back_end = GetParam(), .depth = 2, .model = {.write_bytes_per_s = 2e6}});
    for (int i = 0; i < 30; ++i) disk.start(true, i, IoClass::states, outcomes[static_cast<size_t>(i)]);
  }
  int cancelled = 0;
  for (auto& outcome : outcomes) cancelled += outcome.get_future().get().error ? 1 : 0;
  EXPECT_GE(cancelled, 25);
}

TEST_P(DiskIoTest, NamesFileAndOffsetOfWhatFails) {
  const auto failure = [&](IoFaults faults, bool write, int index) {
    RawDisk disk({.back_end = GetParam(), .block_bytes = 4 * kPageBytes, .faults = faults});
    for (int i = 0; i < index; ++i)
      if (disk.run(write, i).error) return std::string("too early");
    const DiskTransfer::Outcome outcome = disk.run(write, index);
    if (!outcome.error) return std::string("no error");
    EXPECT_EQ(outcome.error->kind(), Error::Kind::disk);
    EXPECT_TRUE(outcome.touched);
    EXPECT_EQ(disk.io->counters().errors, 1);
    std::string text = outcome.error->what();
    const size_t at = text.find(disk.path);
    return at == std::string::npos ? text : text.replace(at, disk.path.size(), "FILE");
  };
  EXPECT_EQ(failure({.read_error_after_bytes = 2 * kPiece}, false, 2), "reading FILE at offset 131072: Input/output error");
  EXPECT_EQ(failure({.write_error_after_bytes = kPiece}, true, 1), "writing FILE at offset 65536: Input/output error");
  EXPECT_THAT(failure({.full_after_bytes = kPiece + 8 * kPageBytes}, true, 1),
              HasSubstr("disk full writing FILE at offset 98304: 16.0 KiB needed, "));
  EXPECT_EQ(failure({.ends_after_bytes = kPiece + 4 * kPageBytes}, false, 1),
            "reading FILE at offset 81920: 0 of 16384 bytes, and no more");
  EXPECT_EQ(failure({.ends_after_bytes = kPageBytes / 2}, false, 0), "reading FILE at offset 0: 2048 of 16384 bytes, and no more");
}

TEST_P(DiskIoTest, FinishesTransfersThatTheSystemCutsShort) {
  RawDisk disk({.back_end = GetParam(), .faults = {.longest_block_bytes = 3 * kPageBytes}});
  fill(disk.piece(3), 1, 2);
  EXPECT_FALSE(disk.run(true, 3).error);
  fill(disk.piece(3), 0, 0);
  EXPECT_FALSE(disk.run(false, 3).error);
  EXPECT_TRUE(holds(disk.piece(3), 1, 2));
  EXPECT_EQ(disk.io->counters().bytes_written(), kPiece);
}

TEST(DiskIo, IsServedByThreadsWhereTheDiskIsNotTheRealOne) {
  base::FaultyDisk faulty({.full_after_bytes = kPiece});
  RawDisk disk({}, Time::real, 4, faulty);
  EXPECT_THAT(disk.io->description(), HasSubstr("8 threads with pread and pwrite (io_uring: this disk is not the machine's own)"));
  EXPECT_FALSE(disk.run(true, 0).error);
  EXPECT_THAT(disk.run(true, 1).error->what(), HasSubstr("disk full writing"));
  EXPECT_THAT(message_of([&] { DiskIo({.back_end = BackEnd::io_uring}, disk.clock, {}, faulty); }),
              HasSubstr("bad_input: disk.back_end = io_uring: this disk is not the machine's own. Use automatic"));
}

TEST(DiskIo, RefusesOptionsThatCannotBe) {
  base::RealClock clock;
  EXPECT_EQ(message_of([&] { DiskIo({.depth = 0}, clock); }), "bad_input: disk.depth = 0: must be from 1 to 1024");
  EXPECT_EQ(message_of([&] { DiskIo({.block_bytes = 5000}, clock); }), "bad_input: disk.block_bytes = 5000: must be a multiple of 4096");
}

// What the kernel counts for this process.
int64_t kernel_bytes(const std::string& field) {
  std::ifstream in("/proc/self/io");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field + ": ")) return std::stoll(line.substr(field.size() + 2));
  return -1;
}

TEST_P(DiskIoTest, CountsWhatTheKernelCounts) {
  if (kernel_bytes("read_bytes") < 0) GTEST_SKIP() << "this kernel does not count";
  RawDisk disk({.back_end = GetParam(), .block_bytes = 8 * kPageBytes});
  const int64_t read = kernel_bytes("read_bytes"), written = kernel_bytes("write_bytes");
  for (int i = 0; i < 64; ++i) EXPECT_FALSE(disk.run(true, i).error);
  for (int i = 0; i < 48; ++i) EXPECT_FALSE(disk.run(false, i).error);
  const double kernel_written = static_cast<double>(kernel_bytes("write_bytes") - written);
  const double kernel_read = static_cast<double>(kernel_bytes("read_bytes") - read);
  const DiskCounters counters = disk.io->counters();
  EXPECT_EQ(counters.bytes_written(), 64 * kPiece);
  EXPECT_NEAR(static_cast<double>(counters.bytes_written()) / kernel_written, 1, 0.05);
  EXPECT_NEAR(static_cast<double>(counters.bytes_read()) / kernel_read, 1, 0.05);
}

}  // namespace
}  // namespace cairn::memory
