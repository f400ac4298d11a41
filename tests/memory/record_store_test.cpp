#include "memory/record_store.h"

#include <fcntl.h>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using base::MemoryUse;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RecordStoreTest : public OnBackEnds {
 protected:
  DiskFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(All, RecordStoreTest, ::testing::Values(BackEnd::threads, BackEnd::io_uring), name_of_back_end);

// Changes the file behind the store's back.
void overwrite(const std::filesystem::path& path, int64_t offset, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(file, bytes.data(), bytes.size(), offset), std::ssize(bytes));
  ASSERT_EQ(::fsync(file), 0);
  ::close(file);
}
std::string contents(const std::filesystem::path& path, int64_t offset, int64_t bytes) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(offset);
  std::string text(static_cast<size_t>(bytes), ' ');
  in.read(text.data(), bytes);
  return text;
}

TEST_P(RecordStoreTest, KeepsRecordsOfAnyLength) {
  Rig rig(folder_, {.back_end = GetParam(), .block_bytes = 256 << 10});
  std::vector<RecordId> ids;
  for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{4032}, int64_t{4033}, int64_t{4095}, int64_t{4096}, int64_t{4097},
                              int64_t{65537}, 3 * kMiB + 1, 5 * kMiB})
    ids.push_back(rig.store.add("record of " + std::to_string(bytes), bytes, MemoryUse::optimizer));
  for (int round = 0; round < 2; ++round)
    for (const RecordId id : ids) rig.write(id);
  rig.store.drain();
  for (const RecordId id : ids) {
    ReadHandle read = rig.store.read(id);
    EXPECT_TRUE(rig.has(id, read)) << static_cast<int64_t>(id);
    EXPECT_EQ(read.version(), 2U);
    EXPECT_FALSE(read.forwarded());
    EXPECT_EQ(read.wait()->size(), rig.store.bytes(id));
  }
  EXPECT_EQ(rig.store.counters().disk_reads, std::ssize(ids));
  EXPECT_EQ(rig.pool.budget().free_bytes(), rig.pool.budget().capacity());  // every buffer is back
  EXPECT_GT(rig.store.file().budget().books().of(MemoryUse::optimizer).now, 8 * kMiB);
}

TEST_P(RecordStoreTest, ForwardsWhatIsStillBeingWritten) {
  Rig rig(folder_, {.back_end = GetParam(), .model = {.write_bytes_per_s = 100e6}}, {.time = Time::stopped});
  const RecordId id = rig.store.add("activations", kMiB, MemoryUse::activations);
  WriteHandle write = rig.write(id, {.io_class = IoClass::activations});
  ReadHandle read = rig.store.read(id);
  EXPECT_TRUE(read.ready());
  EXPECT_FALSE(write.ready());
  EXPECT_TRUE(rig.has(id, read));
  EXPECT_TRUE(read.forwarded());
  std::thread later([&] {
    while (rig.store.counters().stalls == 0 || rig.io->counters().depth == 0) std::this_thread::yield();
    rig.stopped.advance_by(milliseconds(200));
  });
  write.wait();
  later.join();
  EXPECT_TRUE(rig.has(id, read));
  EXPECT_EQ(rig.io->counters().bytes_read(), 0);
  const StoreCounters counters = rig.store.counters();
  EXPECT_EQ(counters.forwarded_reads, 1);
  EXPECT_EQ(counters.forwarded_bytes, kMiB);
  EXPECT_EQ(counters.stalls, 1);  // of the write; the read was there
  EXPECT_DOUBLE_EQ(counters.stall_s, 0.2);
  EXPECT_EQ(counters.ready_waits, 1);
}

TEST_P(RecordStoreTest, GivesAnExclusiveReaderABufferOfItsOwnAfterTheWrite) {
  Rig rig(folder_, {.back_end = GetParam(), .model = {.write_bytes_per_s = 40e6}}, {.time = Time::stopped});
  const RecordId id = rig.store.add("states", kMiB / 2, MemoryUse::optimizer);
  WriteHandle write = rig.write(id);
  ReadHandle read = rig.store.read(id, {.exclusive = true});
  EXPECT_FALSE(read.ready());
  rig.go_on();
  Buffer buffer = read.take();
  EXPECT_TRUE(write.ready());
  EXPECT_TRUE(read.forwarded());  // the buffer of the write
  EXPECT_TRUE(holds(buffer.bytes(), 0, 1));
  fill(buffer.bytes(), 0, 2);
  EXPECT_EQ(rig.store.write(id, std::move(buffer)).version(), 2U);
  rig.store.drain();
  ReadHandle again = rig.store.read(id, {.exclusive = true});
  EXPECT_TRUE(holds(again.take().bytes(), 0, 2));
  EXPECT_FALSE(again.forwarded());
  EXPECT_THAT(message_of([&] { rig.store.read(id).take(); }), HasSubstr("take() is for exclusive reads"));
}

TEST_P(RecordStoreTest, MakesAReadWaitForTheVersionItWants) {
  Rig rig(folder_, {.back_end = GetParam()});
  const RecordId id = rig.store.add("layers.0", 70'001, MemoryUse::parameters);
  rig.write(id).wait();
  ReadHandle early = rig.store.read(id, {.version = 2}), own = rig.store.read(id, {.version = 2, .exclusive = true});
  ReadHandle never = rig.store.read(id, {.deadline = milliseconds(5), .version = 4});
  EXPECT_FALSE(early.ready());
  rig.write(id);
  EXPECT_TRUE(rig.has(id, early));
  EXPECT_TRUE(holds(own.take().bytes(), 0, 2));
  EXPECT_THAT(message_of([&] { never.wait(); }), HasSubstr("reading layers.0 (version 4; 68.4 KiB at offset 0 of "));
  EXPECT_THAT(message_of([&] { never.wait(); }), HasSubstr("not done within 5.00 ms"));
  EXPECT_THAT(message_of([&] { rig.store.read(id, {.version = 1}); }),
              HasSubstr("cairn-swap-test-0.data at offset 0: layers.0: version 1 was asked for, and version 2 has replaced it"));
  EXPECT_TRUE(never.cancel());
  EXPECT_THAT(message_of([&] { never.wait(); }), StartsWith("cancelled: "));
}

TEST_P(RecordStoreTest, RefusesARecordThatWasNeverWritten) {
  Rig rig(folder_, {.back_end = GetParam()});
  rig.store.add("first", 5000, MemoryUse::parameters);
  const RecordId id = rig.store.add("second", 100, MemoryUse::parameters);
  EXPECT_THAT(message_of([&] { rig.store.read(id); }), HasSubstr("at offset 8192: second was never written"));
}

TEST_P(RecordStoreTest, FindsTornAndStaleRecords) {
  Rig rig(folder_, {.back_end = GetParam()});
  const RecordId id = rig.store.add("layers.3", 10'000, MemoryUse::parameters),
                 other = rig.store.add("layers.4", 10'000, MemoryUse::parameters);
  const std::filesystem::path path = rig.store.file().path();
  const auto fault = [&](RecordId record) { return message_of([&] { rig.store.read(record).wait(); }); };
  rig.write(id).wait();
  rig.write(other).wait();
  const std::string first = contents(path, 0, 12'288);
  rig.write(id).wait();
  const std::string second = contents(path, 0, 12'288);
  overwrite(path, 0, first);
  EXPECT_EQ(fault(id),
            "corrupt_file: " + path.string() + " at offset 0: layers.3 is stale: the disk holds version 1, version 2 was written");
  overwrite(path, 0, second.substr(0, 8192) + first.substr(8192));  // the end of an older version
  EXPECT_THAT(fault(id), HasSubstr("is stale"));
  overwrite(path, 0, first.substr(0, 4096) + second.substr(4096));
  EXPECT_EQ(fault(id), "corrupt_file: " + path.string() + " at offset 0: layers.3 is torn: the checksum of version 2 is wrong");
  overwrite(path, 12'288 - 20, "xxxx");
  EXPECT_EQ(fault(id), "corrupt_file: " + path.string() + " at offset 0: layers.3 is torn: there is no valid seal at its end");
  overwrite(path, 12'288, second);
  EXPECT_THAT(fault(other), HasSubstr("at offset 12288: layers.4 is stale: another record lies there"));
  rig.write(id).wait();  // a new version heals it
  EXPECT_EQ(fault(id), "no error");
}

TEST_P(RecordStoreTest, FindsWritesThatTheDiskLost) {
  Rig lost(folder_, {.back_end = GetParam(), .faults = {.lost_write = 1}});
  const RecordId id = lost.store.add("expert", 9000, MemoryUse::parameters);
  lost.write(id).wait();
  lost.write(id).wait();
  EXPECT_THAT(message_of([&] { lost.store.read(id).wait(); }), HasSubstr("is stale: the disk holds version 1, version 2 was written"));
}

TEST_P(RecordStoreTest, FindsWritesThatTheDiskTore) {
  Rig torn(folder_, {.back_end = GetParam(), .faults = {.torn_write = 1}});
  const RecordId id = torn.store.add("expert", 9000, MemoryUse::parameters);
  torn.write(id).wait();
  torn.write(id).wait();
  EXPECT_THAT(message_of([&] { torn.store.read(id).wait(); }), HasSubstr("at offset 0: expert is stale"));
}

TEST_P(RecordStoreTest, ReportsFailedWritesToWhoeverUsesTheRecordNext) {
  Rig rig(folder_, {.back_end = GetParam(), .faults = {.write_error_after_bytes = 8192}});
  const RecordId good = rig.store.add("good", 5000, MemoryUse::parameters), bad = rig.store.add("bad", 3 * kMiB, MemoryUse::optimizer);
  rig.write(good).wait();
  WriteHandle write = rig.write(bad);
  EXPECT_THAT(message_of([&] { rig.store.read(bad, {.exclusive = true}).wait(); }), HasSubstr("disk: writing "));
  EXPECT_THAT(message_of([&] { rig.store.read(bad); }), HasSubstr("at offset 8192: Input/output error (bad, version 1)"));
  EXPECT_THAT(message_of([&] { rig.store.drain(); }), HasSubstr("Input/output error (bad, version 1)"));
  EXPECT_EQ(message_of([&] { rig.store.drain(); }), "no error");
  EXPECT_THAT(message_of([&] { write.wait(); }), HasSubstr("Input/output error"));
  ReadHandle read = rig.store.read(good);
  EXPECT_TRUE(rig.has(good, read));
  EXPECT_EQ(rig.store.version(bad), 0U);
}

TEST_P(RecordStoreTest, ReportsFailedReadsAndLeavesTheRecord) {
  Rig rig(folder_, {.back_end = GetParam(), .faults = {.read_error_after_bytes = 8192}});
  const RecordId id = rig.store.add("layers.1", 5000, MemoryUse::parameters);
  rig.write(id).wait();
  rig.store.read(id).wait();
  EXPECT_THAT(message_of([&] { rig.store.read(id).wait(); }), HasSubstr("at offset 0: Input/output error (layers.1, version 1)"));
  EXPECT_EQ(rig.store.version_on_disk(id), 1U);
  EXPECT_EQ(rig.pool.budget().free_bytes(), rig.pool.budget().capacity());
}

TEST_P(RecordStoreTest, TakesBackWritesThatHaveNotBegun) {
  Rig rig(folder_, {.back_end = GetParam(), .depth = 1, .model = {.write_bytes_per_s = 100e6}}, {.time = Time::stopped});
  const RecordId a = rig.store.add("a", kMiB - 64, MemoryUse::activations), b = rig.store.add("b", kMiB - 64, MemoryUse::activations);
  WriteHandle first = rig.write(a);
  wait_until_busy(*rig.io);
  WriteHandle second = rig.write(b), third = rig.write(b);
  ReadHandle waits = rig.store.read(b, {.exclusive = true});
  EXPECT_EQ(rig.store.version(b), 2U);
  EXPECT_TRUE(third.cancel());
  EXPECT_FALSE(third.cancel());
  EXPECT_THAT(message_of([&] { waits.wait(); }), StartsWith("cancelled: "));
  EXPECT_EQ(rig.store.version(b), 1U);
  rig.go_on();
  second.wait();
  first.wait();
  EXPECT_FALSE(second.cancel());
  ReadHandle read = rig.store.read(b);
  EXPECT_TRUE(rig.has(b, read));
  EXPECT_EQ(rig.write(b).version(), 3U);  // a number is used once
}

TEST_P(RecordStoreTest, FreesTheRoomOfRemovedRecordsAndCancelsTheirWrites) {
  Rig rig(folder_, {.back_end = GetParam(), .depth = 1, .model = {.write_bytes_per_s = 100e6}},
          {.time = Time::stopped, .disk_bytes = 3 * kMiB});
  const RecordId a = rig.store.add("a", kMiB, MemoryUse::activations), b = rig.store.add("b", kMiB, MemoryUse::activations);
  EXPECT_THAT(message_of([&] { rig.store.add("c", kMiB, MemoryUse::activations); }),
              HasSubstr("out_of_memory: memory.disk_budget = 3.00 MiB: c needs 1.00 MiB, and 1016 KiB are free"));
  WriteHandle kept = rig.write(a);
  wait_until_busy(*rig.io);
  WriteHandle dropped = rig.write(b);
  rig.store.remove(b);
  rig.go_on();
  EXPECT_THAT(message_of([&] { dropped.wait(); }), StartsWith("cancelled: "));
  EXPECT_THAT(message_of([&] { rig.store.version(b); }), HasSubstr("there is no record 1"));
  kept.wait();
  rig.store.drain();
  EXPECT_EQ(rig.io->counters().bytes_written(), sealed_bytes(kMiB));
  const RecordId c = rig.store.add("c", kMiB, MemoryUse::activations);
  rig.write(c).wait();
  rig.store.remove(a);
  rig.store.remove(c);
  EXPECT_EQ(rig.store.file().budget().free_bytes(), 3 * kMiB);
}

TEST_P(RecordStoreTest, NeedsABufferForEachReadAndSaysWhoHasThem) {
  Rig rig(folder_, {.back_end = GetParam()}, {.host_bytes = 3 * kMiB});
  const RecordId id = rig.store.add("layers.7", kMiB, MemoryUse::parameters);
  rig.write(id).wait();
  const std::shared_ptr<const Buffer> held = rig.store.read(id).wait(), more = rig.store.read(id).wait();
  EXPECT_THAT(message_of([&] { rig.store.read(id); }),
              HasSubstr("out_of_memory: memory.host_budget = 3.00 MiB: layers.7 needs 1.00 MiB, and 1016 KiB are free"));
  EXPECT_THAT(message_of([&] { rig.store.read(id); }), HasSubstr("In use: parameters 2.01 MiB; the largest: layers.7 1.00 MiB"));
}

// Many records, many transfers, drawn at random, against a plain table of what each version holds.
TEST_P(RecordStoreTest, KeepsEveryVersionStraightUnderManyTransfers) {
  Rig rig(folder_, {.back_end = GetParam(),
                    .block_bytes = 8192,
                    .aging = milliseconds(1),
                    .model = {.latency = std::chrono::microseconds(50), .jitter = 3}});
  const base::Random random(5);
  std::vector<RecordId> ids;
  for (int i = 0; i < 13; ++i) ids.push_back(rig.store.add("r" + std::to_string(i), 1 + i * i * 271, MemoryUse::parameters));
  for (const RecordId id : ids) rig.write(id);
  std::vector<std::pair<RecordId, ReadHandle>> reads;
  for (uint64_t i = 0; i < 600; ++i) {
    const RecordId id = ids[random.bits32(4 * i) % ids.size()];
    const auto io_class = static_cast<IoClass>(random.bits32(4 * i + 1) % kIoClasses);
    switch (random.bits32(4 * i + 2) % 4) {
      case 0:
        rig.write(id, {.io_class = io_class});
        break;
      case 1: {
        ReadHandle own = rig.store.read(id, {.io_class = io_class, .exclusive = true});
        Buffer buffer = own.take();
        ASSERT_TRUE(holds(buffer.bytes(), static_cast<int64_t>(id), own.version())) << i;
        fill(buffer.bytes(), static_cast<int64_t>(id), rig.store.version(id) + 1);
        rig.store.write(id, std::move(buffer), {.io_class = io_class});
        break;
      }
      default:
        reads.emplace_back(id, rig.store.read(id, {.io_class = io_class}));
    }
    if (reads.size() > 40) {
      for (auto& [one, read] : reads) ASSERT_TRUE(rig.has(one, read)) << i;
      reads.clear();
    }
  }
  reads.clear();
  rig.store.drain();
  for (const RecordId id : ids) {
    ReadHandle read = rig.store.read(id);
    EXPECT_TRUE(rig.has(id, read));
    EXPECT_EQ(rig.store.version_on_disk(id), rig.store.version(id));
  }
  EXPECT_GT(rig.store.counters().forwarded_reads, 0);
  EXPECT_GT(rig.store.counters().disk_reads, 13);
}

// Threads that hit the same records at once: each checks that what it reads is whole.
TEST_P(RecordStoreTest, ServesSeveralThreads) {
  Rig rig(folder_, {.back_end = GetParam()});
  std::vector<RecordId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(rig.store.add("r" + std::to_string(i), 20'000 + i, MemoryUse::parameters));
  for (const RecordId id : ids) rig.write(id);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        if (i % 3 == 0) rig.write(ids[t]);  // each record has one writer, as in training
        const RecordId id = ids[(t + static_cast<size_t>(i)) % ids.size()];
        ReadHandle read = rig.store.read(id);
        if (!rig.has(id, read)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  rig.store.drain();
}

TEST_P(RecordStoreTest, ClosesWithTransfersOnTheirWay) {
  WriteHandle write;
  {
    Rig rig(folder_, {.back_end = GetParam(), .depth = 1, .model = {.write_bytes_per_s = 10e6}});
    const RecordId id = rig.store.add("a", 100'000, MemoryUse::data);
    rig.write(id);
    rig.store.read(id, {.version = 9});
    for (int i = 0; i < 5; ++i) write = rig.write(id);
  }
  EXPECT_TRUE(write.ready());
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace cairn::memory
