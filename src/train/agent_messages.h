// What the agents of several machines say to each other (agent_group.cpp), as JSON.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/net/key.h"
#include "comm/net/transport.h"
#include "train/agent.h"
#include "train/generations.h"

namespace cairn::train {

inline constexpr const char* kStateMessage = "state";
inline constexpr const char* kStartMessage = "start";
inline constexpr const char* kFinishMessage = "finish";

// What a machine does.
struct AgentState {
  int node = 0;
  uint64_t incarnation = 0;  // of the agent; the bridge says it
  int generation = 0;        // that its ranks run, or ran last; 0: none yet
  bool ready = false;        // no rank runs; the set-ups below wait for the next generation
  std::string token;         // of these set-ups
  int count = 0;             // ranks
  std::string host;          // where other machines reach them
  std::vector<uint16_t> ports;
  std::string host_name;
  // How the ranks of `generation` ended, once they have.
  bool well = false;
  bool stopped = false;  // a stop was requested here
  int code = 0;
  std::optional<LostRank> lost = {};
  double ended_at = 0;
  int64_t step = 0;  // that the run had got to, as far as it is visible there
};
base::Json to_json(const AgentState& state);
AgentState state_from_json(const base::Json& json);  // throws where fields are missing

// A machine of a generation.
struct Member {
  int node = 0;
  uint64_t incarnation = 0;
};

// What a machine needs to start its ranks, and to lead after the loss of the leader.
struct GenerationPlan {
  int generation = 0;
  std::string token;            // of the machine's set-ups
  std::vector<Member> members;  // lowest first; the first one has rank 0
  std::vector<comm::RankAddress> addresses;
  std::vector<int> ranks;  // of this machine
  comm::Key key{};
  std::filesystem::path run;
  bool resume = false;  // of the first generation
  double lost_at = 0;
  RestartBudget::State budget = {};
  std::string first_error;  // of the restarts without progress
  int first_code = 0;
};
base::Json to_json(const GenerationPlan& plan);
GenerationPlan plan_from_json(const base::Json& json);

base::Json finish_message(int generation, int code, const std::string& why);

// A sentence of the bridge, whose sites are islands elsewhere, in the words of machines.
std::string of_machines(std::string text);

}  // namespace cairn::train
