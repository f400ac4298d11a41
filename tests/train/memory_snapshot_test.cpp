// Snapshots in memory: what a rank writes there, and real ranks that are killed.
#include "train/state/memory_snapshot.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/metrics.h"
#include "elastic/keeper.h"
#include "elastic/keeper_client.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "snapshot/rank_part.h"
#include "train/agent.h"
#include "train/state/memory_blob.h"

namespace cairn::train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

RankSnapshot small_state() {
  RankSnapshot saved;
  saved.part.rank = 3;
  const auto piece = [](const char* section, const char* name, const at::Tensor& tensor) {
    mesh::Fragment fragment;
    for (const int64_t size : tensor.sizes()) fragment.local_shard.dims.push_back({{0, size}});
    fragment.elements = {0, tensor.numel()};
    return snapshot::OwnPiece{section, name, tensor.sizes().vec(), fragment, tensor.view({-1})};
  };
  saved.part.own.push_back(piece("model", "w", at::arange(1001, at::kFloat).view({7, 143})));
  saved.part.own.push_back(piece("sampler", "seen", at::arange(5, at::kLong)));
  saved.rest = snapshot::Contents{.step = 12, .texts = {{"training/state.json", "{}"}}, .version = "1"};
  return saved;
}

std::vector<std::byte> written(const RankSnapshot& saved) {
  std::vector<std::byte> memory(static_cast<size_t>(blob_bytes(saved)));
  EXPECT_TRUE(write_blob(saved, memory));
  return memory;
}

TEST(MemoryBlob, HasWhatTheRankWroteAndItsSmallPiecesTravelToAll) {
  const std::vector<std::byte> memory = written(small_state());
  const BlobFacts facts = read_blob(memory, "here");
  EXPECT_EQ(facts.step, 12);
  EXPECT_EQ(facts.texts.at("training/state.json"), "{}");
  const BlobFacts there = unpack(pack(facts), "there");
  EXPECT_EQ(there.vote, facts.vote);
  EXPECT_EQ(there.bytes, facts.bytes);
  const snapshot::Safetensors file(file_without_values(there, "header"));
  const snapshot::TensorEntry* small = file.find("sampler/seen");
  ASSERT_TRUE(small);
  EXPECT_TRUE(at::equal(file.view(*small), at::arange(5, at::kLong)));
  ASSERT_TRUE(file.find("model/w"));  // its values are elsewhere
  EXPECT_EQ(file.view(*file.find("model/w")).count_nonzero().item<int64_t>(), 0);
}

TEST(MemoryBlob, RefusesMemoryThatIsTornOrSomethingElse) {
  std::vector<std::byte> memory = written(small_state());
  const auto trouble = [&](const std::vector<std::byte>& bytes) -> std::string {
    try {
      read_blob(bytes, "memory");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(trouble(memory), "");
  EXPECT_THAT(trouble(std::vector<std::byte>(memory.size())), HasSubstr("no rank's state"));
  EXPECT_THAT(trouble(std::vector<std::byte>(100)), HasSubstr("too short"));
  std::vector<std::byte> head = memory;
  head[16] ^= std::byte{1};  // the length of the file
  EXPECT_THAT(trouble(head), HasSubstr("no rank's state"));
  const auto text = std::search(memory.begin(), memory.end(), base::as_bytes("state.json").begin(), base::as_bytes("state.json").end());
  ASSERT_NE(text, memory.end());
  *text ^= std::byte{1};
  EXPECT_THAT(trouble(memory), HasSubstr("another checksum"));
}

TEST(MemoryBlob, SaysThatItDoesNotFit) {
  RankSnapshot saved = small_state();
  std::vector<std::byte> memory(20'000);
  EXPECT_TRUE(write_blob(saved, memory));
  saved.rest->texts["notes.txt"] = std::string(memory.size(), 'n');
  EXPECT_FALSE(write_blob(saved, memory));  // the texts
  std::vector<std::byte> less(8000);
  EXPECT_FALSE(write_blob(small_state(), less));  // not even two pages
}

// --- real ranks --------------------------------------------------------------------------------------------------------------------------

const std::string kProgram = std::string(CAIRN_BINARY_DIR) + "/cairn";

std::vector<int> children_with(const std::string& setting) {
  std::vector<int> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (int pid = 0; list >> pid;) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
      for (std::string one; std::getline(file, one, '\0');)
        if (one == setting) found.push_back(pid);
    }
  }
  return found;
}

std::map<int64_t, double> losses_of(const std::filesystem::path& run) {
  std::map<int64_t, double> losses;
  if (!base::path_exists(run / "metrics.jsonl")) return losses;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has("loss")) losses[row.integer("step")] = row.number("loss");
  return losses;
}

// Two ranks of one node, once. `during` is called until they have ended.
int generation(const std::filesystem::path& run, const elastic::KeeperHandle& keeper, int number, const std::function<void()>& during,
               std::string* log) {
  std::filesystem::create_directories(run);
  const std::string output = run.string() + ".log";
  AgentOptions options{.setups = comm::make_net_setups(2),
                       .argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" >>'" + output + "' 2>&1", kProgram, "train", "--out", run.string()},
                       .env = {{"CAIRN_RUN_DIR", run.string()},
                               {"CAIRN_RUN_RESUME", number > 1 ? "1" : "0"},
                               {"CAIRN_AGENT_SECONDS", "0"},
                               {"CAIRN_GENERATION", std::to_string(number)},
                               {elastic::kKeeperFdVariable, std::to_string(keeper.fd())}},
                       .failure_grace = 3s,
                       .hold_stop = true,
                       .inherited_fds = {keeper.fd()}};
  for (const char* set :
       {"model.layers=1", "model.embed=16", "model.heads=2", "model.kv_heads=1", "model.mlp=32", "data.tokenizer=bytes", "data.length=16",
        "data.stories_bytes=50000", "train.global_batch=4", "train.steps=30", "eval.every=0", "eval.samples=50", "snapshot.every=0",
        "snapshot.last=false", "log.samples=0", "log.trace=false", "log.tensorboard=false", "snapshot.memory.every=1"})
    options.argv.insert(options.argv.end(), {"--set", set});
  std::atomic<bool> ended{false};
  std::thread watcher([&] {
    while (!ended) {
      during();
      ::poll(nullptr, 0, 2);
    }
  });
  base::Log quiet = base::Log::quiet();
  const int code = run_ranks(options, quiet, base::Stop());
  ended = true;
  watcher.join();
  if (log) *log = base::read_file(output, 1 << 20);
  return code;
}

TEST(MemorySnapshots, RanksThatAreKilledGoOnFromTheKeeperWithTheSameLossesAndOneThatIsKilledIsReplaced) {
  const harness::ScratchFolder scratch;
  const std::filesystem::path calm = scratch.path() / "calm", killed = scratch.path() / "killed";
  {
    const elastic::KeeperHandle keeper = elastic::start_keeper({.argv = {kProgram, "keeper"}});
    ASSERT_EQ(generation(
                  calm, keeper, 1, [] {}, nullptr),
              0);
  }
  std::string log;
  const elastic::KeeperHandle keeper = elastic::start_keeper({.argv = {kProgram, "keeper"}});
  bool done = false, keeper_killed = false;
  generation(
      killed, keeper, 1,
      [&] {
        const size_t steps = losses_of(killed).size();
        if (steps >= 6 && !std::exchange(keeper_killed, true)) ::kill(keeper.pid(), SIGKILL);
        if (steps < 14 || std::exchange(done, true)) return;
        for (const char* rank : {"CAIRN_RANK=0", "CAIRN_RANK=1"})
          for (const int pid : children_with(rank)) ::kill(pid, SIGKILL);
      },
      &log);
  ASSERT_TRUE(done);
  EXPECT_THAT(log, HasSubstr("protection is reduced"));
  EXPECT_THAT(log, HasSubstr("have met again"));
  const auto before = static_cast<int64_t>(losses_of(killed).size());
  ASSERT_EQ(generation(
                killed, keeper, 2, [] {}, &log),
            0)
      << log;
  EXPECT_THAT(log, HasSubstr("from memory"));
  const size_t at = log.find("restored step ");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_LE(before - std::stoll(log.substr(at + 14)), 2);
  EXPECT_EQ(losses_of(killed), losses_of(calm));
  EXPECT_FALSE(base::path_exists(killed / "snapshots"));
}

TEST(MemorySnapshots, AKeeperEndsWithItsRun) {
  int pid = -1;
  {
    const elastic::KeeperHandle keeper = elastic::start_keeper({.argv = {kProgram, "keeper"}});
    elastic::KeeperClient client(keeper.fd());
    const auto status = client.ask({{"op", "status"}}, 30s);
    ASSERT_TRUE(status);
    pid = status->body.at("pid").get<int>();
    EXPECT_EQ(pid, keeper.pid());
    EXPECT_EQ(::getsid(pid), pid);  // a session of its own
    try {
      client.ask({{"op", "begin"}, {"vault", "none"}, {"serial", 1}, {"step", 1}}, 30s);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "keeper: no such layout");
    }
  }
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace cairn::train
