// One run on several machines, and under others' launchers: here as processes of one machine that know nothing of each other.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <signal.h>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net/listen.h"
#include "program.h"
#include "running.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

std::string free_place() {
  const comm::Listener listener = comm::listen_at("127.0.0.1");
  ::close(listener.fd);
  return "127.0.0.1:" + std::to_string(listener.port);
}

using Words = std::vector<std::string>;

// Programs side by side, each with variables of its own.
struct Process {
  Words variables;
  Words arguments;
};

std::vector<Outcome> side_by_side(const harness::ScratchFolder& scratch, const std::vector<Process>& processes) {
  std::vector<Outcome> outcomes(processes.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < processes.size(); ++i) {
    threads.emplace_back([&, i] {
      Words argv{"env", "-C", scratch.path().string(), "CAIRN_CACHE=" + (scratch / "cache").string()};
      argv.insert(argv.end(), processes[i].variables.begin(), processes[i].variables.end());
      argv.push_back(std::string(CAIRN_BINARY_DIR) + "/cairn");
      argv.insert(argv.end(), processes[i].arguments.begin(), processes[i].arguments.end());
      const std::string log = "output" + std::to_string(i) + ".txt";
      const study::ProcessResult ended = study::run_program(argv, (scratch / log).string());
      outcomes[i] = {ended.exit_code, scratch.text_of(log)};
    });
  }
  threads.clear();
  return outcomes;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Machines, ARunOnTwoHasTheLossesOfARunOnOne) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, {"key", "run.key"}).code, 0);
  const Words steps = tiny({"train", "--set", "train.steps=6"});
  ASSERT_EQ(cairn(scratch, with(steps, {"--out", "one"})).code, 0);
  const Words common = with(steps, {"--nnodes", "2", "--rendezvous", free_place(), "--key", "run.key"});
  const auto ends = side_by_side(scratch, {{{}, with(common, {"--node-rank", "0", "--nproc", "2", "--out", "two"})},
                                           {{}, with(common, {"--node-rank", "1", "--nproc", "1"})}});
  for (const Outcome& end : ends) ASSERT_EQ(end.code, 0) << end.output;
  EXPECT_THAT(ends[0].output, HasSubstr("machine 1 is here"));
  EXPECT_THAT(ends[1].output, HasSubstr("machine 1 of 2: 1 rank here"));
  const auto one = losses_in(scratch / "one"), two = losses_in(scratch / "two");
  ASSERT_EQ(two.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(two[i], one[i], 1e-5);
}

TEST(Machines, WithAnotherKeyNobodyGetsIn) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, {"key", "run.key"}).code, 0);
  ASSERT_EQ(cairn(scratch, {"key", "other.key"}).code, 0);
  const Words common = tiny({"train", "--set", "train.steps=2", "--nnodes", "2", "--rendezvous", free_place()});
  std::vector<Outcome> first;
  {
    const std::jthread host([&] {
      first = side_by_side(scratch, {{{}, with(common, {"--node-rank", "0", "--key", "run.key", "--out", "two"})}});
    });
    const Outcome stranger = cairn(scratch, with(common, {"--node-rank", "1", "--key", "other.key"}));
    EXPECT_EQ(stranger.code, 2);
    EXPECT_THAT(stranger.output, HasSubstr("all machines need the same key"));
    const Outcome second = cairn(scratch, with(common, {"--node-rank", "1", "--key", "run.key"}));
    EXPECT_EQ(second.code, 0) << second.output;
  }
  EXPECT_EQ(first[0].code, 0) << first[0].output;
}

TEST(Machines, WhatIsMissingOnTheCommandLineIsSaid) {
  const harness::ScratchFolder scratch;
  const auto said = [&](const Words& arguments) {
    const Outcome outcome = cairn(scratch, with({"train"}, arguments));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(said({"--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:1"}), HasSubstr("cairn key run.key"));
  EXPECT_THAT(said({"--nnodes", "2", "--rendezvous", "127.0.0.1:1"}), HasSubstr("--node-rank 0 to 1"));
  EXPECT_THAT(said({"--nnodes", "2", "--node-rank", "0"}), HasSubstr("--rendezvous HOST:PORT"));
  EXPECT_THAT(said({"--node-rank", "1"}), HasSubstr("--nnodes"));
  EXPECT_THAT(said({"--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1:1"}), HasSubstr("the last one is 1"));
  EXPECT_THAT(said({"--transport", "mpi", "--nproc", "2"}), HasSubstr("mpirun -n 2"));
  EXPECT_THAT(said({"--transport", "nccl"}), HasSubstr("add --device cuda"));
}

// The addresses, in hexadecimal as the kernel shows them, at which processes of this folder listen or receive datagrams.
std::set<std::string> bound_addresses(const std::string& folder) {
  std::set<std::string> inodes, addresses;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(process.path() / "environ", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::error_code gone;
    if (text.find("CAIRN_CACHE=" + folder) == std::string::npos) continue;
    for (const auto& one : std::filesystem::directory_iterator(process.path() / "fd", gone)) {
      const std::string target = std::filesystem::read_symlink(one.path(), gone).string();
      if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  for (const std::string table : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file("/proc/net/" + table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      Words word{std::istream_iterator<std::string>(words), {}};
      const bool waits = word.size() > 9 && (table.starts_with("udp") || word[3] == "0A");  // 0A: listens
      if (waits && inodes.contains(word[9])) addresses.insert(word[1].substr(0, word[1].find(':')));
    }
  }
  return addresses;
}

// 127.0.0.2 stands for the address of a network: nothing may listen elsewhere, and above all not at 0.0.0.0.
TEST(Machines, ListenAtTheNamedAddressAndLoopbackOnly) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, {"key", "run.key"}).code, 0);
  const std::string place = "127.0.0.2" + free_place().substr(9);
  const Words common = tiny({"train", "--set", "train.steps=100000", "--nnodes", "2", "--rendezvous", place, "--key", "run.key"});
  Running first(scratch, with(common, {"--node-rank", "0", "--out", "two"}));
  std::set<std::string> seen;
  const auto look = [&] { seen.merge(bound_addresses(scratch.path().string())); };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!seen.contains("0200007F") && std::chrono::steady_clock::now() < deadline) look();  // the first machine waits
  Running second(scratch, with(common, {"--node-rank", "1"}));
  while (!std::filesystem::exists(scratch / "two" / "metrics.jsonl") && std::chrono::steady_clock::now() < deadline) look();
  look();
  EXPECT_THAT(seen, testing::ElementsAre("0100007F", "0200007F")) << scratch.text_of("background.txt");
  EXPECT_EQ(first.end(SIGTERM), 0);
  EXPECT_EQ(second.wait(), 0);
}

// As torchrun does it: one process for each rank, which knows its place from its environment.
TEST(Launchers, RanksThatTorchrunStartedFindEachOther) {
  const harness::ScratchFolder scratch;
  const Words steps = tiny({"train", "--set", "train.steps=4"});
  ASSERT_EQ(cairn(scratch, with(steps, {"--out", "one"})).code, 0);
  std::vector<Process> processes;
  const std::string port = free_place().substr(10);
  for (const char* rank : {"0", "1", "2"}) {
    processes.push_back({{std::string("RANK=") + rank, std::string("LOCAL_RANK=") + rank, "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3",
                          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port},
                         with(steps, {"--out", "three"})});
  }
  const auto ends = side_by_side(scratch, processes);
  for (const Outcome& end : ends) ASSERT_EQ(end.code, 0) << end.output;
  const auto one = losses_in(scratch / "one"), three = losses_in(scratch / "three");
  ASSERT_EQ(three.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(three[i], one[i], 1e-5);
}

TEST(Launchers, RanksOnTwoMachinesMeetWhereTheLauncherSays) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, {"key", "run.key"}).code, 0);
  const Words steps = tiny({"train", "--set", "train.steps=4", "--out", "four"});
  std::vector<Process> processes;
  const std::string port = free_place().substr(10);
  for (int rank = 0; rank < 4; ++rank) {
    processes.push_back({{"CAIRN_KEY=run.key", "RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank % 2), "WORLD_SIZE=4",
                          "LOCAL_WORLD_SIZE=2", "GROUP_RANK=" + std::to_string(rank / 2), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port},
                         steps});
  }
  const auto ends = side_by_side(scratch, processes);
  for (const Outcome& end : ends) ASSERT_EQ(end.code, 0) << end.output;
  EXPECT_EQ(losses_in(scratch / "four").size(), 4u);
}

}  // namespace
}  // namespace cairn::cli
