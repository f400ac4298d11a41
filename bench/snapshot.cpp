// `cairn bench snapshot`: saving and restoring a sharded training state (weights and Adam's two moments, fp32) next to
// torch.distributed.checkpoint over FSDP2 and Gloo: tensors of the same shapes, so the same bytes; ranks that are processes of this
// machine; files out of the page cache before they are read; one thread a rank.
#include "snapshot/snapshot.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <regex>
#include <unistd.h>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bench/peer_python.h"
#include "comm/net/listen.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 3;
// Three saves while training goes on, of which the first warms up. Each has ended when the next begins: the peer's has too.
constexpr int64_t kEvery = 10, kSteps = 31;
constexpr int64_t kBlock = 4 << 20, kPage = 4096;
constexpr double kGoalStall = 5, kGoalRestore = 1.5, kGoalFlush = 1 / 1.25;

// 22.6 M parameters: 271 MB of state.
const std::vector<std::string>& sizes() {
  static const std::vector<std::string> sets{
      "model.layers=4", "model.embed=640", "model.heads=10", "model.kv_heads=10", "model.mlp=2048",       "data.tokenizer=\"bytes\"",
      "data.length=32", "eval.fraction=0", "log.samples=0",  "memory.zero=3",     "optim.warmup_steps=0", "train.global_batch=4"};
  return sets;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

ProcessResult train(const BenchOptions& options, int64_t ranks, const std::string& out, const std::vector<std::string>& sets, bool resume) {
  std::vector<std::string> command{options.program, "train", "--nproc", std::to_string(ranks), "--out", out};
  if (resume) command = {options.program, "train", "--nproc", std::to_string(ranks), "--resume", out};
  for (const std::vector<std::string>& some : {sizes(), sets})
    for (const std::string& one : some) command.insert(command.end(), {"--set", one});
  return run_program(command, options.scratch + "/ours.log");
}

// The seconds that saves held up training, without the first.
std::vector<double> held_up(const std::string& run) {
  std::vector<double> seconds;
  for (const base::MetricsRow& row : base::read_metrics(run + "/metrics.jsonl"))
    if (row.has("snapshot_s") && row.number("snapshot_s") > 0) seconds.push_back(row.number("snapshot_s"));
  if (seconds.size() < 2) base::fail_input("{}: {} saves in metrics.jsonl", run, seconds.size());
  return {seconds.begin() + 1, seconds.end()};
}

struct Saved {
  std::vector<double> seconds;  // that training waited, of each save
  std::string run;
};
Saved save_ours(const BenchOptions& options, int64_t ranks, const std::string& mode) {
  Saved saved{.seconds = {}, .run = fmt::format("{}/ours-{}-{}", options.scratch, mode, ranks)};
  fs::remove_all(saved.run);
  const ProcessResult ended = train(
      options, ranks, saved.run,
      {fmt::format("train.steps={}", kSteps), fmt::format("snapshot.every={}", kEvery), "snapshot.keep=1", "snapshot.mode=" + mode}, false);
  if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
  saved.seconds = held_up(saved.run);
  return saved;
}

// Whatever of these files is in the page cache goes.
void drop_from_cache(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

// The seconds that a resumed run says its load took.
double restore_ours(const BenchOptions& options, int64_t ranks, const std::string& run) {
  drop_from_cache(run);
  const ProcessResult ended =
      train(options, ranks, run, {fmt::format("train.steps={}", kSteps + 1), "snapshot.every=0", "snapshot.last=false"}, true);
  std::smatch found;
  const std::string said = base::read_file(options.scratch + "/ours.log", 64 << 20);
  if (ended.exit_code != 0 || !std::regex_search(said, found, std::regex("read by all of them together, ([0-9.]+) s")))
    base::fail_input("our run did not resume: {}", ended.output);
  return std::stod(found[1]);
}

struct Peer {
  std::vector<double> stalls, flushes;
  double restore = 0;
};
Peer run_peer(const BenchOptions& options, const std::string& python, int64_t ranks, const std::string& what, const std::string& folder,
              const std::string& shapes) {
  const auto [fd, port] = comm::listen_at("127.0.0.1");
  ::close(fd);
  if (what == "restore") drop_from_cache(folder);
  const ProcessResult ended = run_program(
      {python, std::string(CAIRN_BENCH_FOLDER) + "/snapshot_peer.py", what, std::to_string(ranks), std::to_string(port), folder, shapes},
      options.scratch + "/peer.log");
  const size_t begin = ended.output.rfind("{\"stalls\"");
  if (ended.exit_code != 0 || begin == std::string::npos) base::fail_input("the peer's run failed: {}", ended.output);
  const std::string printed = ended.output.substr(begin);
  const base::Json result = base::parse_json(printed.substr(0, printed.find('\n')));
  return {result["stalls"].get<std::vector<double>>(), result["flushes"].get<std::vector<double>>(), result["restore"].get<double>()};
}

// Seconds that so many bytes take to the disk, past the page cache, one block after the other.
double write_bare(const BenchOptions& options, int64_t bytes) {
  const std::string path = options.scratch + "/bare";
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kPage, kBlock), &std::free);
  std::memset(block.get(), 7, kBlock);
  const base::RealClock clock;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) base::fail_input("{}: cannot be written past the page cache: {}", path, std::strerror(errno));
  const std::chrono::nanoseconds began = clock.now();
  for (int64_t at = 0; at < bytes; at += kBlock)
    if (::pwrite(file, block.get(), kBlock, at) != kBlock) base::fail_input("{}: {}", path, std::strerror(errno));
  ::fsync(file);
  const double seconds = base::seconds(clock.now() - began);
  ::close(file);
  fs::remove(path);
  return seconds;
}

int64_t state_bytes(const std::string& run) {
  const snapshot::OpenSnapshot opened = snapshot::open(snapshot::find_latest(run).value());
  int64_t bytes = 0;
  for (const auto& [name, file] : opened.manifest().files)
    if (name.ends_with(".safetensors")) bytes += file.bytes;
  return bytes;
}

// Names and shapes of the weights, for the peer.
std::string write_shapes(const BenchOptions& options, const std::string& run) {
  const snapshot::OpenSnapshot opened = snapshot::open(snapshot::find_latest(run).value());
  base::OrderedJson shapes = base::OrderedJson::array();
  for (const snapshot::TensorEntry& entry : opened.entries("model")) shapes.push_back(entry.shape);
  const std::string path = options.scratch + "/shapes.json";
  base::write_atomically(path, std::string_view(base::compact(shapes)));
  return path;
}

// Lazy copies where this Cairn has them.
std::string background_mode(const BenchOptions& options) {
  const ProcessResult checked =
      run_program({options.program, "train", "--dry-run", "--set", "snapshot.mode=lazy"}, options.scratch + "/mode.log");
  return checked.exit_code == 0 ? "lazy" : "async";
}

class Rounds {
 public:
  Rounds(const BenchOptions& options, base::Log& log) : options_(options), log_(log), mode_(background_mode(options)) {
    try {
      python_ = peer_python(options, log);
    } catch (const Error& error) {
      log.warn("the peer is left out: {}", error.what());
    }
  }

  std::vector<BenchRow> run() {
    for (const int64_t ranks : {2, 4}) measure(ranks);
    return std::move(rows_);
  }

 private:
  void measure(int64_t ranks) {
    const int64_t others = ranks == 2 ? 4 : 2;
    std::vector<double> stall[2], flush[2], bare, restore[2], moved[2];
    for (int round = 0; round < kRounds; ++round)
      for (const int turn : {0, 1}) {  // who is first changes from round to round
        if ((round + turn) % 2 == 0) {
          const Saved background = save_ours(options_, ranks, mode_), at_once = save_ours(options_, ranks, "sync");
          if (shapes_.empty()) shapes_ = write_shapes(options_, at_once.run);
          stall[0].push_back(median(background.seconds));
          flush[0].push_back(median(at_once.seconds));
          bare.push_back(write_bare(options_, state_bytes(at_once.run)));
          restore[0].push_back(restore_ours(options_, ranks, at_once.run));
          moved[0].push_back(restore_ours(options_, others, at_once.run));
        } else if (!python_.empty()) {
          if (shapes_.empty()) shapes_ = write_shapes(options_, save_ours(options_, ranks, "sync").run);
          const std::string folder = fmt::format("{}/peer-{}", options_.scratch, ranks);
          fs::remove_all(folder);
          const Peer saved = run_peer(options_, python_, ranks, "save", folder, shapes_);
          stall[1].push_back(median(saved.stalls));
          flush[1].push_back(median(saved.flushes));
          restore[1].push_back(run_peer(options_, python_, ranks, "restore", folder, shapes_).restore);
          moved[1].push_back(run_peer(options_, python_, others, "restore", folder, shapes_).restore);
        }
      }
    log_.info("{} ranks: medians: stall {:.3f} s, flush {:.3f} s, bare write {:.3f} s, restore {:.3f} s, on {} ranks {:.3f} s", ranks,
              median(stall[0]), median(flush[0]), median(bare), median(restore[0]), others, median(moved[0]));
    add(fmt::format("{} ranks: stall of training, mode {}, async_save", ranks, mode_), stall, kGoalStall);
    add(fmt::format("{} ranks: restore, cold", ranks), restore, kGoalRestore);
    add(fmt::format("{} ranks: restore on {}, cold", ranks, others), moved, kGoalRestore);
    add(fmt::format("{} ranks: save to the end, dcp.save", ranks), flush, 0);
    rows_.push_back(
        compare(fmt::format("{} ranks: save to the end, bare direct write", ranks), flush[0], bare, "s", Better::lower, kGoalFlush));
  }

  void add(const std::string& name, const std::vector<double> (&values)[2], double goal) {
    if (python_.empty())
      rows_.push_back({.case_name = name, .ours = median(values[0]), .unit = "s", .goal = goal, .measured = false});
    else
      rows_.push_back(compare(name, values[0], values[1], "s", Better::lower, goal));
  }

  const BenchOptions& options_;
  base::Log& log_;
  const std::string mode_;
  std::string python_, shapes_;  // empty: the peer cannot be installed; not known yet
  std::vector<BenchRow> rows_;
};

}  // namespace

std::vector<BenchRow> bench_snapshot(const BenchOptions& options, base::Log& log) { return Rounds(options, log).run(); }

}  // namespace cairn::study
