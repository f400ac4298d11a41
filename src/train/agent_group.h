// The agents of several machines agree on the generations of a run (train.on_loss). agent_group.cpp has the protocol.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "comm/net/key.h"
#include "comm/rendezvous/rendezvous.h"
#include "train/generations.h"

namespace cairn::train {

// Where a run writes.
struct GroupRun {
  std::filesystem::path path;
  bool resume = false;  // whether its first generation resumes what is there
};

struct AgentGroupOptions {
  LossPolicy policy;
  int node = 0, nodes = 1;  // this machine's number, and how many there are when none is lost
  int count = 1;            // ranks on this machine
  comm::Key key{};
  comm::RendezvousEndpoint endpoint;  // of machine 0, or of any machine of a run in progress
  std::string address = {};           // where other machines reach this one; empty: as this one reaches the endpoint
  std::string config_fingerprint;     // must be the same on all machines
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);  // for all machines to come at the start
  std::chrono::nanoseconds lost_after = std::chrono::seconds(6);  // a machine that is not heard of for this long is lost
  // Chooses the run directory and holds it. Called once, on machine 0, when all machines are there.
  std::function<GroupRun(int ranks)> choose_run;
  // Holds the directory of a run in progress for this machine, which has its first rank now; or lets it go.
  std::function<void(const std::filesystem::path& run)> hold_run;
  std::function<void()> release_run;
  // Why so many ranks, with or without CAIRN_SHRUNK, cannot train this recipe; empty: they can.
  std::function<std::string(int ranks, bool shrunk)> check_layout;
  std::function<void(const std::string&)> tell;  // lines for people
};

// This machine's part in the run. Ranks of a generation with fewer machines than `nodes` get CAIRN_SHRUNK=1.
std::unique_ptr<GenerationSource> join_agent_group(AgentGroupOptions options, base::Log& log, const base::Stop& stop);

}  // namespace cairn::train
