// Machines that are lost: each is an agent with its ranks, all on this machine over loopback.
#include <arpa/inet.h>
#include <filesystem>
#include <memory>
#include <netinet/in.h>
#include <signal.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/run_events.h"
#include "program.h"
#include "rank_processes.h"
#include "running.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

// A port that was free a moment ago.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// The machines of one run.
class Machines {
 public:
  Machines(const harness::ScratchFolder& scratch, std::string out, int nodes, std::vector<std::string> more)
      : scratch_(scratch),
        out_(std::move(out)),
        nodes_(nodes),
        more_(std::move(more)),
        rendezvous_("127.0.0.1:" + std::to_string(free_port())) {
    if (!std::filesystem::exists(scratch / "run.key")) {
      EXPECT_EQ(cairn(scratch, {"key", "run.key"}).code, 0);
    }
    running_.resize(static_cast<size_t>(nodes));
    for (int node = 0; node < nodes; ++node) start(node);
  }
  void start(int node) {
    std::vector<std::string> arguments = tiny({"train", "--out", out_, "--nproc", "1", "--nnodes", std::to_string(nodes_), "--node-rank",
                                               std::to_string(node), "--rendezvous", rendezvous_, "--key", "run.key", "--set",
                                               "train.steps=60", "--set", "snapshot.every=7", "--set", "eval.every=0"});
    arguments.insert(arguments.end(), more_.begin(), more_.end());
    running_[static_cast<size_t>(node)] = std::make_unique<Running>(scratch_, arguments, text_name(node));
  }
  Running& operator[](int node) { return *running_[static_cast<size_t>(node)]; }
  // Ends the agent and with it its ranks: a machine without power.
  void cut_power(int node) { (*this)[node].end(SIGKILL); }
  std::string texts() const {
    std::string all;
    for (int node = 0; node < nodes_; ++node) all += "machine " + std::to_string(node) + ":\n" + scratch_.text_of(text_name(node));
    return all + scratch_.text_of(out_ + "/events.jsonl");
  }
  std::filesystem::path run() const { return scratch_ / out_; }

 private:
  std::string text_name(int node) const { return out_ + "-" + std::to_string(node) + ".txt"; }
  const harness::ScratchFolder& scratch_;
  const std::string out_;
  const int nodes_;
  const std::vector<std::string> more_;
  const std::string rendezvous_;
  std::vector<std::unique_ptr<Running>> running_;
};

const std::vector<std::string> kRestart{"--set", "train.on_loss=restart"};

std::vector<double> undisturbed(const harness::ScratchFolder& scratch, int nodes) {
  Machines machines(scratch, "whole", nodes, kRestart);
  for (int node = 0; node < nodes; ++node) EXPECT_EQ(machines[node].wait(), 0) << machines.texts();
  return losses_in(scratch / "whole");
}

TEST(AgentGroup, ALostRankIsStartedAgainAndThenAMachineIsReplaced) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, 2);
  Machines machines(scratch, "run", 2, kRestart);
  ASSERT_TRUE(reaches(machines.run(), 9)) << machines.texts();
  kill(process_of_rank("1", scratch.path().string()), SIGKILL);
  ASSERT_TRUE(comes([&] { return events_of(machines.run(), "restored").size() == 1; })) << machines.texts();
  ASSERT_TRUE(reaches(machines.run(), 20)) << machines.texts();
  machines.cut_power(1);
  machines.start(1);
  EXPECT_EQ(machines[0].wait(), 0) << machines.texts();
  EXPECT_EQ(machines[1].wait(), 0) << machines.texts();
  EXPECT_EQ(losses_in(machines.run()), whole) << machines.texts();
  EXPECT_EQ(events_of(machines.run(), "rank_lost").at(0)["machine"], 1);
  EXPECT_EQ(events_of(machines.run(), "machine_lost").at(0)["machine"], 1);
  EXPECT_EQ(events_of(machines.run(), "generation_started").size(), 3u) << machines.texts();
}

TEST(AgentGroup, TheMachineThatTheOthersMetAtIsReplaced) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, 2);
  Machines machines(scratch, "run", 2, kRestart);
  ASSERT_TRUE(reaches(machines.run(), 9)) << machines.texts();
  machines.cut_power(0);
  ASSERT_TRUE(comes([&] { return machines.texts().find("machine 0 is lost") != std::string::npos; })) << machines.texts();
  machines.start(0);
  EXPECT_EQ(machines[1].wait(), 0) << machines.texts();
  EXPECT_EQ(machines[0].wait(), 0) << machines.texts();
  EXPECT_EQ(losses_in(machines.run()), whole) << machines.texts();
  EXPECT_EQ(events_of(machines.run(), "restored").at(0)["source"], "disk");
}

TEST(AgentGroup, ShrinksFromThreeMachinesToTwo) {
  const harness::ScratchFolder scratch;
  Machines machines(scratch, "run", 3, {"--mesh", "dp=3", "--set", "train.on_loss=shrink"});
  ASSERT_TRUE(reaches(machines.run(), 9)) << machines.texts();
  machines.cut_power(0);  // the one with the run's first rank
  EXPECT_EQ(machines[1].wait(), 0) << machines.texts();
  EXPECT_EQ(machines[2].wait(), 0) << machines.texts();
  EXPECT_EQ(losses_in(machines.run()).size(), 60u);
  const auto started = events_of(machines.run(), "generation_started");
  ASSERT_EQ(started.size(), 2u) << machines.texts();
  EXPECT_EQ(started[1]["machines"], 2);
  EXPECT_EQ(started[1]["ranks"], 2);
}

TEST(AgentGroup, AMachineThatDoesNotComeBackEndsTheRunWithFour) {
  const harness::ScratchFolder scratch;
  Machines machines(scratch, "run", 2,
                    {"--set", "train.on_loss=restart", "--set", "train.replacement_timeout_s=0.5", "--set", "train.steps=100000"});
  ASSERT_TRUE(reaches(machines.run(), 3)) << machines.texts();
  machines.cut_power(1);
  EXPECT_EQ(machines[0].wait(), 4) << machines.texts();
  EXPECT_THAT(machines.texts(), HasSubstr("machine 1 did not come back within"));
}

TEST(AgentGroup, AStopWhileAMachineIsMissingEndsTheOthersCleanly) {
  const harness::ScratchFolder scratch;
  Machines machines(scratch, "run", 2, {"--set", "train.on_loss=restart", "--set", "train.steps=100000"});
  ASSERT_TRUE(reaches(machines.run(), 3)) << machines.texts();
  machines.cut_power(1);
  ASSERT_TRUE(comes([&] { return machines.texts().find("waiting up to") != std::string::npos; })) << machines.texts();
  EXPECT_EQ(machines[0].end(SIGTERM), 0) << machines.texts();
}

}  // namespace
}  // namespace cairn::cli
