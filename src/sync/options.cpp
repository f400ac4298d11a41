// Reads [sync.dp] and [sync.island]. The keys of each rule are declared beside the rule (rules.h); this file puts them together.
#include "sync/options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/recipe.h"
#include "sync/rules.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

constexpr const char* kIsland = "sync.island";

base::Schema<SyncOptions> island_schema() {
  using O = SyncOptions;
  return {kIsland,
          "How islands synchronise: `all_reduce` sums gradients over all of them at every step; with the other rules each island takes "
          "local steps.",
          {{"kind", &O::kind, "The rule.", base::one_of(island_rule_names())}}};
}

// A group of keys and the rules that have it.
struct KeyGroup {
  SyncRule::MakeKeys make = nullptr;
  RuleKeys keys;
  std::vector<std::string_view> kinds;
};

// Each group once, in the order of the registry.
std::vector<KeyGroup> key_groups() {
  std::vector<KeyGroup> groups;
  for (const SyncRule& rule : rules())
    for (const SyncRule::MakeKeys make : rule.keys) {
      const auto known = std::find_if(groups.begin(), groups.end(), [&](const KeyGroup& group) { return group.make == make; });
      if (known != groups.end())
        known->kinds.push_back(rule.name);
      else
        groups.push_back({make, make(), {rule.name}});
    }
  return groups;
}

// A key of a rule that was not chosen would be ignored.
void refuse_keys_of_other_rules(const base::Recipe& recipe, const SyncRule& chosen) {
  std::vector<std::string> known{"kind"};
  for (const SyncRule::MakeKeys make : chosen.keys)
    for (const base::Entry& entry : make().section.entries) known.push_back(entry.key);
  for (const KeyGroup& group : key_groups())
    for (const base::Entry& entry : group.keys.section.entries)
      if (recipe.has(fmt::format("{}.{}", kIsland, entry.key)) && std::find(known.begin(), known.end(), entry.key) == known.end())
        base::fail_input("{}.{}: is for kind = {}, and kind is {}: leave the key out or change the rule", kIsland, entry.key,
                         fmt::join(group.kinds, " or "), chosen.name);
}

void append_values(const base::Section& section, const std::vector<base::Setting>& values, std::vector<std::string>& lines) {
  for (size_t i = 0; i < values.size(); ++i)
    lines.push_back(fmt::format("{}.{} = {}", section.name, section.entries[i].key, base::to_toml(values[i])));
}

}  // namespace

base::Schema<SyncOptions> sync_schema() {
  using O = SyncOptions;
  return {"sync.dp",
          "How the replicas of the dp axis synchronise.",
          {{"kind", &O::kind, "The rule.", base::one_of(rule_names())},
           {"bucket_mib", &O::bucket_mib, "Gradients are reduced in buckets of about this size, each as soon as backward has completed it.",
            base::more_than(0)}}};
}

SyncOptions read_dp_sync(base::Recipe& recipe) { return recipe.read(sync_schema()); }

SyncOptions read_island_sync(base::Recipe& recipe) {
  SyncOptions options = recipe.read(island_schema());
  const SyncRule& rule = rule_named(options.kind);
  refuse_keys_of_other_rules(recipe, rule);
  for (const SyncRule::MakeKeys make : rule.keys) make().read(recipe, options);
  return options;
}

std::vector<base::Section> sync_sections() {
  std::vector<base::Section> sections{sync_schema().section(), island_schema().section()};
  for (KeyGroup& group : key_groups()) sections.push_back(std::move(group.keys.section));
  return sections;
}

std::vector<std::string> island_keys(const SyncOptions& options) {
  std::vector<std::string> lines;
  const base::Schema<SyncOptions> schema = island_schema();
  append_values(schema.section(), schema.values_of(options), lines);
  for (const SyncRule::MakeKeys make : rule_named(options.kind).keys)
    if (const RuleKeys keys = make(); keys.values) append_values(keys.section, keys.values(options), lines);
  return lines;
}

std::string wire_of(const SyncOptions& options) {
  return options.exchange.wire == "auto" ? std::string(needs_of(options.kind).default_wire) : options.exchange.wire;
}

double outer_lr_of(const SyncOptions& options) {
  return options.outer.outer_lr > 0 ? options.outer.outer_lr : needs_of(options.kind).default_outer_lr;
}

double pull_of(const NolocoOptions& options) { return options.pull < 0 ? options.outer_lr : options.pull; }

}  // namespace cairn::sync
