// `cairn bench disk`: records through the tier on disk (src/memory) beside fio, in turn, with the same block size, depth and mix, both with
// direct I/O and registered buffers, each on a file of its own that is written once before. Ours counts the bytes of records, after their
// checksums.
#include <deque>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "memory/record_store.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int64_t kFileBytes = int64_t{512} << 20, kBlockBytes = int64_t{1} << 20;
constexpr int64_t kRegionBytes = int64_t{8} << 20;  // a record and its seal
constexpr int kDepth = 8;
constexpr int kRounds = 3;
constexpr double kSeconds = 1.5;
constexpr size_t kAhead = 4;  // records asked for at once

struct Mix {
  const char* name;
  const char* fio;
  bool reads, writes;
};
constexpr Mix kMixes[] = {{"read", "read", true, false}, {"write", "write", false, true}, {"mixed", "rw", true, true}};

// A store that is full of records.
class FullStore {
 public:
  FullStore(const std::string& folder, const base::Clock& clock, base::Log& log)
      : clock_(clock),
        pool_("bench", 2 * kAhead * kRegionBytes),
        io_(std::make_shared<memory::DiskIo>(memory::DiskIoOptions{.depth = kDepth, .block_bytes = kBlockBytes}, clock,
                                             std::vector{pool_.memory()})),
        store_({.folder = folder, .run_id = "bench", .bytes = kFileBytes}, io_, pool_, log) {
    for (int64_t i = 0; i < kFileBytes / kRegionBytes; ++i)
      records_.push_back(store_.add(fmt::format("record {}", i), kRegionBytes - memory::kSealBytes, base::MemoryUse::data));
    for (const memory::RecordId id : records_) write(id).wait();
  }

  // MB/s of records for some seconds. Mixed: records are read and written in turn.
  double rate(const Mix& mix) {
    std::deque<memory::ReadHandle> reads;
    std::deque<memory::WriteHandle> writes;
    int64_t bytes = 0;
    const auto begun = clock_.now();
    const auto settle_oldest = [&](auto& handles) {
      handles.front().wait();
      handles.pop_front();
      bytes += kRegionBytes - memory::kSealBytes;
    };
    while (base::seconds(clock_.now() - begun) < kSeconds) {
      const size_t each = kAhead / (mix.reads && mix.writes ? 2 : 1);
      for (; mix.reads && reads.size() < each; next_ += 2)
        reads.push_back(store_.read(record(next_), {.io_class = memory::IoClass::states}));
      for (; mix.writes && writes.size() < each; next_ += 2) writes.push_back(write(record(next_ + 1)));
      if (!reads.empty()) settle_oldest(reads);
      if (!writes.empty()) settle_oldest(writes);
    }
    while (!reads.empty()) settle_oldest(reads);
    while (!writes.empty()) settle_oldest(writes);
    return 1e-6 * static_cast<double>(bytes) / base::seconds(clock_.now() - begun);
  }

  const std::string& description() const { return io_->description(); }

 private:
  memory::RecordId record(size_t number) const { return records_[number % records_.size()]; }
  memory::WriteHandle write(memory::RecordId id) {
    return store_.write(id, pool_.take(store_.bytes(id), base::MemoryUse::data, "bench"), {.io_class = memory::IoClass::states});
  }

  const base::Clock& clock_;
  memory::BufferPool pool_;
  std::shared_ptr<memory::DiskIo> io_;
  memory::RecordStore store_;
  std::vector<memory::RecordId> records_;
  size_t next_ = 0;
};

base::Json run_fio(const BenchOptions& options, const std::string& file, const char* mix, bool ring, double seconds) {
  const std::string result = options.scratch + "/fio.json";
  std::vector<std::string> command{"fio",
                                   "--name=bench",
                                   "--filename=" + file,
                                   fmt::format("--size={}", kFileBytes),
                                   fmt::format("--bs={}", kBlockBytes),
                                   fmt::format("--iodepth={}", kDepth),
                                   "--direct=1",
                                   std::string("--rw=") + mix,
                                   "--output-format=json",
                                   "--output=" + result,
                                   ring ? "--ioengine=io_uring" : "--ioengine=libaio"};
  if (ring) command.emplace_back("--fixedbufs=1");
  if (seconds > 0) command.insert(command.end(), {"--time_based=1", fmt::format("--runtime={}ms", static_cast<int64_t>(1000 * seconds))});
  const ProcessResult ended = run_program(command, options.scratch + "/fio.log");
  if (ended.exit_code == 127 || ended.output.find("No such file or directory") != std::string::npos)
    base::fail_input("cairn bench disk: fio was not found. Install it: sudo apt-get install -y fio");
  if (ended.exit_code != 0) base::fail_input("fio failed: {}", ended.output);
  const std::string text = base::read_file(result, 1 << 20);
  const base::Json json = base::parse_json(std::string_view(text).substr(std::min(text.find('{'), text.size())));
  if (!json.is_object()) base::fail_input("fio reports no JSON: {}", text.substr(0, 200));
  return json["jobs"][0];
}

double fio_rate(const BenchOptions& options, const std::string& file, const Mix& mix, bool ring) {
  const base::Json job = run_fio(options, file, mix.fio, ring, kSeconds);
  return 1e-6 * (job["read"]["bw_bytes"].get<double>() + job["write"]["bw_bytes"].get<double>());
}

}  // namespace

std::vector<BenchRow> bench_disk(const BenchOptions& options, base::Log& log) {
  const base::RealClock clock;
  const std::string file = options.scratch + "/fio.data";
  const bool ring = memory::describe_disk_io().starts_with("io_uring");
  run_fio(options, file, "write", ring, 0);
  FullStore store(options.scratch, clock, log);
  log.info("{} in {}; fio with {}", store.description(), options.scratch, ring ? "io_uring" : "libaio");
  std::vector<BenchRow> rows;
  for (const Mix& mix : kMixes) {
    if (!options.only.empty() && options.only != mix.name) continue;
    std::vector<double> ours, fio;
    for (int round = 0; round < kRounds; ++round) {
      fio.push_back(fio_rate(options, file, mix, ring));
      ours.push_back(store.rate(mix));
      log.info("{}: {:.0f} MB/s, fio {:.0f}", mix.name, ours.back(), fio.back());
    }
    rows.push_back(compare(fmt::format("{}, blocks of 1 MiB, depth {}", mix.name, kDepth), ours, fio, "MB/s", Better::higher, 0.95));
  }
  return rows;
}

}  // namespace cairn::study
