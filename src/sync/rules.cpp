// The list of sync rules. A new one is a file beside this and one line here.
#include <string>
#include <vector>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "sync/all_reduce.h"
#include "sync/co2.h"
#include "sync/diloco.h"
#include "sync/gossip.h"
#include "sync/noloco.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

struct Rule {
  std::string name;
  std::unique_ptr<Sync> (*make)(const SyncOptions&, Replica);
  bool every_step = false;  // replicas are alike after every step
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> list{{"all_reduce", make_all_reduce, true},
                                      {"diloco", make_diloco},
                                      {"streaming_diloco", make_diloco},
                                      {"noloco", make_noloco},
                                      {"co2", make_co2},
                                      {"gossip", make_gossip}};
  return list;
}

}  // namespace

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Rule& rule : rules())
    if (rule.every_step) names.push_back(rule.name);
  return names;
}

std::vector<std::string> island_rule_names() {
  std::vector<std::string> names;
  for (const Rule& rule : rules()) names.push_back(rule.name);
  return names;
}

std::unique_ptr<Sync> make_sync(const SyncOptions& options, Replica replica) {
  for (const Rule& rule : rules())
    if (rule.name == options.kind) return rule.make(options, replica);
  base::fail_unknown("sync rule", options.kind, island_rule_names());
}

}  // namespace cairn::sync
