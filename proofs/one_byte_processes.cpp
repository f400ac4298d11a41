// One byte, through the product: processes of `cairn train`. Islands are started separately, killed and added while others train. Traffic
// is what TCP counts at their sockets: messages, agreement, heartbeats, headers and encryption.
#include "proofs/one_byte_processes.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "comm/net/listen.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "study/process.h"
#include "sync/one_byte/round_log.h"

namespace cairn::study {
namespace {

constexpr double kProcessLimitS = 400;
constexpr int64_t kSlopes = 4;

int free_port() {
  const comm::Listener listener = comm::listen_at("127.0.0.1");
  ::close(listener.fd);
  return listener.port;
}

// A decoder of some ten thousand parameters on little text.
Assignments tiny(int64_t rounds) {
  return {"model.layers=2",       "model.embed=16",       "model.heads=2",         "model.kv_heads=1",
          "model.mlp=32",         "data.tokenizer=bytes", "data.length=16",        "data.stories_bytes=100000",
          "train.precision=fp32", "eval.every=0",         "eval.samples=400",      "snapshot.every=0",
          "log.samples=0",        "log.trace=false",      "log.tensorboard=false", fmt::format("train.steps={}", rounds)};
}

Assignments by_slopes(int64_t rounds, int64_t batch) {
  Assignments sets = tiny(rounds);
  for (const std::string& one : {fmt::format("train.global_batch={}", batch), fmt::format("train.one_byte.samples_per_round={}", kSlopes),
                                 std::string("train.method=one_byte"), std::string("optim.learning_rate=0.01"),
                                 std::string("optim.schedule=constant"), std::string("optim.warmup_steps=0")})
    sets.push_back(one);
  return sets;
}

ProcessResult train_process(const ProofOptions& options, const std::string& name, const Assignments& sets,
                            std::vector<std::string> arguments, const std::function<void(int pid)>& on_start = {}) {
  const std::filesystem::path out = std::filesystem::path(options.scratch) / name;
  std::vector<std::string> command{options.program, "train", "--out", out.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
  return run_program_for(std::chrono::duration<double>(kProcessLimitS), command, out.string() + ".log", on_start);
}

void must_end(const ProcessResult& result, const std::string& name) {
  if (result.exit_code != 0)
    throw Error(Error::Kind::broken_invariant, fmt::format("{} ended with exit code {}: {}", name, result.exit_code, result.output));
}

// Islands of one run, each a process.
class IslandProcesses {
 public:
  IslandProcesses(const ProofOptions& options, std::string name, int count, int founders, Assignments sets)
      : options_(options), name_(std::move(name)), count_(count), founders_(founders), sets_(std::move(sets)) {
    for (int island = 0; island < count; ++island) ports_.push_back(free_port());
    key_ = (std::filesystem::path(options.scratch) / (name_ + ".key")).string();
    must_end(run_program({options.program, "key", key_}, key_ + ".log"), "cairn key");
  }
  ~IslandProcesses() {
    for (auto& [island, thread] : threads_) thread.join();
  }
  IslandProcesses(const IslandProcesses&) = delete;
  IslandProcesses& operator=(const IslandProcesses&) = delete;

  std::string name_of(int island) const { return fmt::format("{}-{}", name_, island); }
  std::filesystem::path folder(int island) const { return std::filesystem::path(options_.scratch) / name_of(island); }

  // `near`: an island that runs, or the first.
  void start(int island, int near = 0) {
    threads_[island] = std::thread([this, island, near] {
      const auto at = [&](int one) { return fmt::format("127.0.0.1:{}", ports_[static_cast<size_t>(one)]); };
      const ProcessResult result =
          train_process(options_, name_of(island), sets_,
                        {"--islands", std::to_string(count_), "--island", std::to_string(island), "--meet", at(near), "--listen",
                         at(island), "--key", key_, "--founders", std::to_string(founders_), "--sync", "one_byte"},
                        [&](int pid) {
                          const std::lock_guard lock(mutex_);
                          pids_[island] = pid;
                        });
      const std::lock_guard lock(mutex_);
      results_[island] = result;
      ended_.notify_all();
    });
  }

  void kill(int island) {
    const std::lock_guard lock(mutex_);
    ::kill(pids_.at(island), SIGKILL);
    killed_.insert(island);
  }

  // Waits until the island's log has so many rounds, or its process has ended. Returns how many it has.
  int64_t wait_for(int island, int64_t rounds) {
    while (true) {
      int64_t done = 0;
      try {
        if (const auto log = sync::RoundLog::open(folder(island) / "rounds.bin")) done = log->next();
      } catch (const Error&) {  // it is being written
      }
      std::unique_lock lock(mutex_);
      if (done >= rounds || results_.count(island) > 0) return done;
      ended_.wait_for(lock, std::chrono::milliseconds(20));  // then the file is looked at again
    }
  }

  // Waits for all that were started. Those that were not killed must have ended well.
  std::vector<int> finish() {
    for (auto& [island, thread] : threads_) thread.join();
    std::vector<int> alive;
    for (const auto& [island, result] : results_) {
      if (killed_.count(island) > 0) continue;
      must_end(result, name_of(island));
      alive.push_back(island);
    }
    threads_.clear();
    return alive;
  }

 private:
  const ProofOptions& options_;
  std::string name_;
  int count_, founders_;
  Assignments sets_;
  std::vector<int> ports_;
  std::string key_;
  std::mutex mutex_;
  std::condition_variable ended_;  // a process
  std::map<int, std::thread> threads_;
  std::map<int, int> pids_;
  std::map<int, ProcessResult> results_;
  std::set<int> killed_;
};

double islands_that_differ(const IslandProcesses& islands, const std::vector<int>& alive) {
  const Tensors first = snapshot_tensors(islands.folder(alive.front()), "model");
  return static_cast<double>(std::count_if(alive.begin(), alive.end(), [&](int island) {
    return largest_difference(snapshot_tensors(islands.folder(island), "model"), first) != 0;
  }));
}

double last_number(const std::filesystem::path& run, const std::string& name) {
  double value = std::numeric_limits<double>::quiet_NaN();
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has(name)) value = row.number(name);
  return value;
}

// Bytes at the sockets of an island, for a round and a peer: over the second half of the rounds, when all are connected.
double socket_bytes_of_a_round(const std::filesystem::path& run, int peers) {
  const std::vector<base::MetricsRow> rows = base::read_metrics(run / "metrics.jsonl");
  const size_t half = rows.size() / 2;
  return (rows.back().number("socket_bytes") - rows[half].number("socket_bytes")) / static_cast<double>(rows.size() - 1 - half) / peers;
}

}  // namespace

// 1 and 3. Four islands; then two with ten million parameters, against an all-reduce of its gradient.
void one_byte_wire(const ProofOptions& options, Findings& findings, base::Log& log) {
  const int64_t rounds = options.full ? 500 : 150;
  log.info("four islands that are processes, {} rounds", rounds);
  IslandProcesses four(options, "four", 4, 4, by_slopes(rounds, 8));
  for (int island = 0; island < 4; ++island) four.start(island);
  const std::vector<int> alive = four.finish();
  findings.at_least(fmt::format("1. four processes, {} rounds: processes that were compared", rounds), 0, static_cast<double>(alive.size()),
                    4);
  findings.at_most("1. of them, those whose weights differ in any bit", 0, islands_that_differ(four, alive), 0);
  const double message = last_number(four.folder(1), "sync_bytes") / static_cast<double>(rounds) / 3;
  findings.at_most("3. bytes of a message for each island, round and peer: 26, the learning rate, 4 slopes and now and then a hash",
                   26 + kSlopes, message, 26 + kSlopes + 4 + 8.0 / 64);
  findings.at_most("3. bytes at the sockets for each island, round and peer, all headers, votes and encryption included", 26 + kSlopes,
                   socket_bytes_of_a_round(four.folder(1), 3), 26 + kSlopes);

  log.info("two islands, ten million parameters, ten rounds");
  Assignments large = by_slopes(10, 2);
  for (const char* set :
       {"model.embed=512", "model.heads=8", "model.kv_heads=8", "model.mlp=1408", "model.layers=3", "train.one_byte.samples_per_round=1",
        "train.one_byte.noise=rademacher", "eval.fraction=0", "optim.learning_rate=1e-6"})
    large.emplace_back(set);
  IslandProcesses two(options, "two", 2, 2, large);
  two.start(0), two.start(1);
  two.finish();
  double elements = 0;
  for (const auto& [name, tensor] : snapshot_tensors(two.folder(0), "model")) elements += static_cast<double>(tensor.numel());
  // A ring all-reduce between two sends every element once in each direction.
  findings.at_least(
      fmt::format("3. {:.1f} million parameters: bytes of a gradient in fp32 / bytes at an island's sockets in a round", 1e-6 * elements),
      1, 4 * elements / socket_bytes_of_a_round(two.folder(0), 1), 1e4);
}

// 4. Of six islands two are killed, the first one among them; two come later, with the base alone.
void one_byte_churn(const ProofOptions& options, Findings& findings, base::Log& log) {
  const int64_t rounds = options.full ? 400 : 160;
  log.info("islands that come and go, {} rounds", rounds);
  Assignments sets = by_slopes(rounds, 8);
  sets.emplace_back("sync.island.timeout_s=5");
  IslandProcesses still(options, "still", 8, 6, sets), moving(options, "moving", 8, 6, sets);
  for (int island = 0; island < 6; ++island) still.start(island);
  still.finish();
  for (int island = 0; island < 6; ++island) moving.start(island);
  moving.wait_for(1, rounds / 8);
  moving.kill(4);
  moving.wait_for(1, rounds / 4);
  moving.kill(0);
  const int64_t begun = moving.wait_for(1, rounds / 3);
  moving.start(6, /*near=*/1), moving.start(7, /*near=*/1);  // island 0 is gone
  const std::vector<int> alive = moving.finish();
  const double before = last_number(still.folder(1), "eval_loss"), after = last_number(moving.folder(1), "eval_loss");
  const auto log_of_one = sync::RoundLog::open(moving.folder(1) / "rounds.bin");
  const auto records = sync::decode_records(log_of_one->records(), sync::SlopeCode::log8);
  log.info("loss {:.4f} with six all along, {:.4f} with two killed and two more that started at round {}", before, after, begun);
  findings.at_least("4. islands at the end, of six founders, two killed and two added", 6, static_cast<double>(alive.size()), 6);
  findings.at_least("4. islands whose messages count in the last round", 6, static_cast<double>(records.back().messages.size()), 6);
  findings.at_least(
      "4. fewest islands whose messages count in a round", 6,
      static_cast<double>(std::ranges::min_element(records, {}, [](const auto& one) { return one.messages.size(); })->messages.size()), 3);
  findings.at_most("4. of them, those whose weights differ in any bit", 0, islands_that_differ(moving, alive), 0);
  findings.at_most("4. loss against six islands all along, off by", 0, std::abs(after / before - 1), 0.03);
}

// 2. A model of stories is tuned on text of another kind, by one and by four processes.
void one_byte_quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch, numbers = scratch / "numbers.txt";
  constexpr const char* kNumbers[] = {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"};
  std::string text;
  const base::Random random = base::Random(options.seed).for_purpose("numbers");
  for (uint64_t line = 0; line < 2000; ++line) {
    const uint64_t first = random.below(line, 10);
    for (uint64_t i = 0; i < 12; ++i) text += fmt::format("{}{}", kNumbers[(first + i) % 10], i == 11 ? ".\n\n" : " ");
  }
  base::write_atomically(numbers, text);
  Assignments base_sets = tiny(200);
  for (const char* set : {"train.global_batch=16", "optim.learning_rate=0.005"}) base_sets.emplace_back(set);
  must_end(train_process(options, "base", base_sets, {}), "base");
  const int64_t rounds = options.full ? 400 : 150;
  const auto tuned = [&](const std::string& name, int processes, const std::string& code, double rate) {
    Assignments sets = by_slopes(rounds, 4 * processes);
    std::erase_if(sets, [](const std::string& one) { return one.starts_with("model.") || one.starts_with("optim.learning_rate"); });
    for (const std::string& one : {"model.from=" + (scratch / "base").string(), "train.one_byte.code=" + code,
                                   fmt::format("optim.learning_rate={}", rate), fmt::format("train.seed={}", options.seed)})
      sets.push_back(one);
    must_end(train_process(options, name, sets, {"--data", numbers.string(), "--nproc", std::to_string(processes)}), name);
    const double loss = last_number(scratch / name, "eval_loss");
    log.info("{}: {} processes, {}, rate {}: held-out loss {:.4f}", name, processes, code, rate, loss);
    return loss;
  };
  const double start = tuned("start", 1, "log8", 1e-30), bytes = tuned("bytes", 4, "log8", 0.01), floats = tuned("floats", 4, "fp32", 0.01);
  const double alone = tuned("alone", 1, "log8", 0.01);
  findings.at_most(fmt::format("2. four processes, {} rounds: loss with bytes against floats, off by", rounds), 0,
                   std::abs(bytes / floats - 1), 0.01);
  findings.at_most("2. four processes: loss with bytes, of that before", 1, bytes / start, 0.95);
  findings.at_most("2. loss of four processes (baseline: of one, at equal rounds and rate)", alone, bytes, alone);
}

}  // namespace cairn::study
