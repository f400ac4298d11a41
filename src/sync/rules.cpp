// The registry of rules: a declaration, and a line with the rule's name, its function, its keys and its needs (needs.h).
#include "sync/rules.h"

#include <string>

#include "base/did_you_mean.h"

namespace cairn::sync {

std::unique_ptr<Sync> make_all_reduce(const SyncOptions& options, Replica replica);        // all_reduce.cpp
std::unique_ptr<Sync> make_diloco(const SyncOptions& options, Replica replica);            // diloco.cpp
std::unique_ptr<Sync> make_streaming_diloco(const SyncOptions& options, Replica replica);  // diloco.cpp
std::unique_ptr<Sync> make_noloco(const SyncOptions& options, Replica replica);            // noloco.cpp
std::unique_ptr<Sync> make_co2(const SyncOptions& options, Replica replica);               // co2.cpp
std::unique_ptr<Sync> make_gossip(const SyncOptions& options, Replica replica);            // gossip.cpp
std::unique_ptr<Sync> make_one_byte_rounds(const SyncOptions& options, Replica replica);   // one_byte/island_rounds.cpp
RuleKeys diloco_keys();                                                                    // diloco_keys.cpp
RuleKeys streaming_diloco_keys();                                                          // diloco_keys.cpp
RuleKeys noloco_keys();
RuleKeys co2_keys();
RuleKeys gossip_keys();

const std::vector<SyncRule>& rules() {
  static const std::vector<SyncRule> list{
      {.name = "all_reduce",
       .make = make_all_reduce,
       .needs = {.along_dp = true,
                 .several_islands = false,
                 .local_steps = false,
                 .every_gradient = true,
                 .fits_cuda_graph = true,
                 .announces_writes = true,
                 .leaves_out_frozen = true,
                 .may_rearrange = true}},
      {.name = "diloco",
       .make = make_diloco,
       .keys = {exchange_keys, sparse_keys, diloco_keys},
       .needs = {.remote_islands = true, .announces_writes = true, .may_rearrange = true}},
      {.name = "streaming_diloco",
       .make = make_streaming_diloco,
       .keys = {exchange_keys, sparse_keys, diloco_keys, streaming_diloco_keys},
       .needs = {.remote_islands = true, .announces_writes = true, .default_wire = "e3m0", .default_outer_lr = 0.4}},
      {.name = "noloco",
       .make = make_noloco,
       .keys = {exchange_keys, noloco_keys},
       .needs = {.remote_islands = true,
                 .one_model = false,
                 .announces_writes = true,
                 .random_routing = true,
                 .no_sparse_wire = "noloco's other half, the slow weights, travels whole, so little would be saved: use bf16, or another "
                                   "kind"}},
      {.name = "co2",
       .make = make_co2,
       .keys = {exchange_keys, sparse_keys, co2_keys},
       .needs = {.remote_islands = true, .announces_writes = true}},
      {.name = "gossip",
       .make = make_gossip,
       .keys = {exchange_keys, gossip_keys},
       .needs = {.remote_islands = true,
                 .one_model = false,
                 .announces_writes = true,
                 .no_sparse_wire = "gossip sends models, of which nothing can be left out: use bf16, or another kind"}},
      {.name = "one_byte",
       .make = make_one_byte_rounds,
       .keys = {exchange_keys},
       .needs = {.remote_islands = true, .messages = true, .announces_writes = true}}};
  return list;
}

namespace {

std::vector<std::string> names_where(bool SyncNeeds::*holds, bool value = true) {
  std::vector<std::string> names;
  for (const SyncRule& rule : rules())
    if (rule.needs.*holds == value) names.emplace_back(rule.name);
  return names;
}

}  // namespace

std::vector<std::string> rule_names() { return names_where(&SyncNeeds::along_dp); }
std::vector<std::string> island_rule_names() { return names_where(&SyncNeeds::along_island); }
std::vector<std::string> remote_rule_names() { return names_where(&SyncNeeds::remote_islands); }
std::vector<std::string> message_rule_names() { return names_where(&SyncNeeds::messages); }
std::vector<std::string> parameter_rule_names() { return names_where(&SyncNeeds::messages, false); }

const SyncRule& rule_named(std::string_view kind) {
  for (const SyncRule& rule : rules())
    if (rule.name == kind) return rule;
  std::vector<std::string> names;
  for (const SyncRule& rule : rules()) names.emplace_back(rule.name);
  base::fail_unknown("sync rule", kind, names);
}

const SyncNeeds& needs_of(std::string_view kind) { return rule_named(kind).needs; }

std::unique_ptr<Sync> make_sync(const SyncOptions& options, Replica replica) { return rule_named(options.kind).make(options, replica); }

}  // namespace cairn::sync
