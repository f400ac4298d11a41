#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cairn::sync {

// What a rule needs from a run and what it cannot work with: plain data beside the rule's line in rules.cpp. The trainer, the planner and
// the command line derive their refusals and special cases from it. No other file compares the name of a rule.
//
// The defaults describe the usual rule between islands: local steps, all islands in one world, any device and precision.
struct SyncNeeds {
  // Where the rule may stand.
  bool along_dp = false;        // as sync.dp.kind, among the replicas that take every step together
  bool along_island = true;     // as sync.island.kind
  bool remote_islands = false;  // islands may be worlds of their own, started separately and sharded differently
  bool several_islands = true;  // one island alone is refused: the rule would do nothing

  // What it does to a step.
  bool local_steps = true;       // replicas step alone and differ until the next round; false: identical after every step
  bool one_model = true;         // global_parameters, or else the parameters, are bitwise identical on all replicas after a round
  bool every_gradient = false;   // reduces every gradient of every step before the optimizer reads it
  bool fits_cuda_graph = false;  // decides nothing on the host during a step, so a CUDA graph may replay the step
  bool messages = false;         // exchanges messages of the step method and no parameters (message_rounds.h)
  // Calls Replica::barrier before it changes parameters or its state by element (mesh/write_barrier.h), so that lazy snapshots need not be
  // complete before each of its hooks. gradient_ready and should_step change neither.
  bool announces_writes = false;
  bool leaves_out_frozen = false;  // sends nothing of parameters that are frozen for a while (Sync::set_frozen)
  // Between steps the trainer may permute the elements of parameters, together with the rule's state by element: no message that holds them
  // is under way after a round.
  bool may_rearrange = false;
  bool random_routing = false;  // pipeline.routing = auto means random: micro-batches change islands between stages

  // Its defaults and limits of the options that several rules share.
  std::string_view default_wire = "fp32";  // what sync.island.wire = auto means
  double default_outer_lr = 0.7;           // what outer_lr = 0 means (OuterOptions)
  std::string_view no_sparse_wire = {};    // why it refuses wires that drop values, and what to use instead; empty: it accepts them
};

// The needs of the rule of this name (sync.<axis>.kind). Refuses an unknown name.
const SyncNeeds& needs_of(std::string_view kind);

// The names of the rules that may stand along dp, along island, and between remote islands.
std::vector<std::string> rule_names();
std::vector<std::string> island_rule_names();
std::vector<std::string> remote_rule_names();
// Between islands: the names of the rules that carry messages of the step method, and of the others.
std::vector<std::string> message_rule_names();
std::vector<std::string> parameter_rule_names();

}  // namespace cairn::sync
