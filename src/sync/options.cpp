#include "sync/options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/recipe.h"
#include "sync/islands/compressor.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

constexpr const char* kIsland = "sync.island";

base::Schema<SyncOptions> island_schema() {
  using O = SyncOptions;
  return {kIsland,
          "How islands come to agree: `all_reduce` sums gradients over all of them at every step; with the others each island takes its "
          "steps by itself.",
          {{"kind", &O::kind, "The rule.", base::one_of(island_rule_names())}}};
}

base::Schema<ExchangeOptions> exchange_schema() {
  using O = ExchangeOptions;
  std::vector<std::string> wires = compressor_names(), merges{"mean", "clip", "trim", "median"};
  wires.insert(wires.begin(), "auto");
  return {
      kIsland,
      "With any rule by which islands train apart: how they talk.",
      {{"wire", &O::wire,
        "How numbers travel between islands. auto: e3m0 (4 bits) with streaming_diloco, else fp32. topk: the largest, with their places; "
        "randk: some at random, the same ones on all islands; what stays behind is part of the next message (diloco, streaming_diloco, "
        "co2).",
        base::one_of(std::move(wires))},
       {"merge", &O::merge,
        "How the islands' updates become one (diloco and streaming_diloco). clip: none counts for more than the median norm; trim: of "
        "each number the largest and smallest are left out; median: of each number.",
        base::one_of(std::move(merges))},
       {"trim", &O::trim, "With merge = \"trim\": which share is left out at each end.", base::between(0, 0.49)},
       {"timeout_s", &O::timeout_s, "An island of which nothing is heard for so long is left out of the round.", base::more_than(0)}}};
}

base::Schema<ExchangeOptions> sparse_schema() {
  using O = ExchangeOptions;
  return {kIsland,
          "With wire = \"topk\" or \"randk\".",
          {{"keep", &O::keep, "The share of the numbers that travels in a round.", base::between(1e-6, 1)}}};
}

base::Schema<OuterOptions> diloco_schema() {
  using O = OuterOptions;
  return {
      kIsland,
      "With kind = \"diloco\" or \"streaming_diloco\": islands step alone; what they moved by is the gradient of an outer optimizer.",
      {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
       {"outer_lr", &O::outer_lr, "Of the outer optimizer. 0: 0.7 for diloco, 0.4 for streaming_diloco.", base::at_least(0)},
       {"outer_momentum", &O::outer_momentum, "Of the outer optimizer (Nesterov).", base::between(0, 0.999)},
       {"outer_warmup", &O::outer_warmup,
        "Rounds in which the outer momentum grows from nothing: the first moves of a fresh model are long and all one way, and momentum "
        "would carry it past the goal.",
        base::at_least(0)},
       {"weights", &O::weights, "How much each island counts: alike, or as the tokens that it learned from.",
        base::one_of({"uniform", "tokens"})},
       {"pace", &O::pace,
        "alike: every island takes every step; own: slower islands leave steps out, so that all come to a round at about the same time "
        "(use weights = \"tokens\" with it).",
        base::one_of({"alike", "own"})},
       {"error_feedback", &O::error_feedback,
        "What the wire rounds away or leaves out stays on the island and is part of its next message. With topk and randk true unless "
        "said otherwise."}}};
}

base::Schema<OuterOptions> streaming_schema() {
  using O = OuterOptions;
  return {
      kIsland,
      "With kind = \"streaming_diloco\": the model travels fragment by fragment while the islands train on.",
      {{"fragment_layers", &O::fragment_layers, "Layers of a fragment, about.", base::at_least(1)},
       {"pattern", &O::pattern, "Which layers a fragment has: every so many-th, or neighbours.", base::one_of({"strided", "sequential"})},
       {"extras", &O::extras, "Parameters outside of layers: a fragment of their own, or each in the smallest one.",
        base::one_of({"own", "smallest"})},
       {"delay", &O::delay, "Steps that a fragment may take to travel; the islands train on meanwhile.", base::at_least(0)},
       {"blend", &O::blend, "Share of the island's own values that stays when a fragment arrives.", base::between(0, 1)}}};
}

base::Schema<NolocoOptions> noloco_schema() {
  using O = NolocoOptions;
  return {kIsland,
          "With kind = \"noloco\": in every round each island talks with one other, drawn anew; there is no sum over all.",
          {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
           {"group", &O::group, "Islands that talk together in a round.", base::at_least(2)},
           {"outer_lr", &O::outer_lr, "How much the progress of the group counts.", base::more_than(0)},
           {"outer_momentum", &O::outer_momentum, "Of the outer step.", base::between(0, 0.999)},
           {"pull", &O::pull, "How strongly an island is pulled towards the mean of its group. -1: as outer_lr."},
           {"prefetch_slow", &O::prefetch_slow, "Slow weights travel to the next partner during the steps before the round."},
           {"final", &O::final_model, "What the run ends with: the mean over all islands, or each island's own.",
            base::one_of({"mean", "one"})}}};
}

base::Schema<Co2Options> co2_schema() {
  using O = Co2Options;
  return {
      kIsland,
      "With kind = \"co2\": the mean of a round travels while the next one is trained, and is used one round late.",
      {{"every", &O::every, "Steps of a round. 0: as many as hide the traffic, measured at the start.", base::at_least(0)},
       {"min_every", &O::min_every, "With every = 0: at least so many.", base::at_least(1)},
       {"outer_lr", &O::outer_lr, "How much of the outer momentum is taken.", base::more_than(0)},
       {"outer_momentum", &O::outer_momentum, "How much of it stays.", base::between(0, 0.999)},
       {"gap", &O::gap, "What a late contribution is divided by: how far the islands have gone since, a constant, or nothing.",
        base::one_of({"ratio", "constant", "off"})},
       {"gap_value", &O::gap_value, "With gap = \"constant\".", base::at_least(1)},
       {"clip", &O::clip, "No number moves by more than so many full inner steps per step of the round. 0: no limit.", base::at_least(0)}}};
}

base::Schema<GossipOptions> gossip_schema() {
  using O = GossipOptions;
  return {kIsland,
          "With kind = \"gossip\": islands average with a few others now and then, and with all of them once, at the end.",
          {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
           {"topology", &O::topology,
            "Whom an island averages with: random others that it asks (random), in pairs (pairwise), or fixed neighbours.",
            base::one_of({"random", "pairwise", "ring", "exponential", "complete"})},
           {"neighbours", &O::neighbours, "With topology = \"random\": how many others, on average.", base::at_least(0)},
           {"schedule", &O::schedule,
            "How much is said when: fixed and final as topology says all along; window: with all from window_start on, for window_width.",
            base::one_of({"fixed", "final", "window"})},
           {"window_start", &O::window_start, "With schedule = \"window\", as a share of the run.", base::between(0, 1)},
           {"window_width", &O::window_width, "With schedule = \"window\", as a share of the run.", base::between(0, 1)},
           {"final", &O::final_model, "What the run ends with: the mean over all, or nothing.", base::one_of({"merge", "none"})}}};
}

struct Named {
  base::Section section;
  std::vector<std::string> kinds;
};

std::vector<Named> rule_sections() {
  return {{exchange_schema().section(), {"diloco", "streaming_diloco", "noloco", "co2", "gossip"}},
          {sparse_schema().section(), {"diloco", "streaming_diloco", "co2"}},
          {diloco_schema().section(), {"diloco", "streaming_diloco"}},
          {streaming_schema().section(), {"streaming_diloco"}},
          {noloco_schema().section(), {"noloco"}},
          {co2_schema().section(), {"co2"}},
          {gossip_schema().section(), {"gossip"}}};
}

// A key of a rule that was not chosen would be ignored: say so, and whose it is.
void refuse_others(const base::Recipe& recipe, const std::string& kind) {
  const std::vector<Named> all = rule_sections();
  const auto serves = [&](const Named& one) { return std::find(one.kinds.begin(), one.kinds.end(), kind) != one.kinds.end(); };
  std::vector<std::string> known{"kind"};
  for (const Named& one : all)
    if (serves(one))
      for (const base::Entry& entry : one.section.entries) known.push_back(entry.key);
  for (const Named& one : all)
    for (const base::Entry& entry : one.section.entries)
      if (recipe.has(fmt::format("{}.{}", kIsland, entry.key)) && std::find(known.begin(), known.end(), entry.key) == known.end())
        base::fail_input("{}.{}: is for kind = {}, and kind is {}: leave the key out or change the rule", kIsland, entry.key,
                         fmt::join(one.kinds, " or "), kind);
}

// Wires that leave numbers out are for rules that send what was learned since the islands were last alike.
void refuse_wire(const SyncOptions& options) {
  const std::string wire = wire_of(options), what = fmt::format("{}.wire = {}", kIsland, wire);
  if (options.kind == "gossip")
    base::fail_input("{}: gossip sends models, of which nothing can be left out: use bf16, or another kind", what);
  if (options.kind == "noloco")
    base::fail_input("{}: noloco's other half, the slow weights, travels whole, so little would be saved: use bf16, or another kind", what);
  if (wire == "topk" && (options.exchange.merge == "trim" || options.exchange.merge == "median"))
    base::fail_input(
        "{}.merge = {}: with wire = topk most islands leave a number out, and its {} would be nothing: use mean or clip, or wire = randk",
        kIsland, options.exchange.merge, options.exchange.merge == "trim" ? "trimmed mean" : "median");
}

}  // namespace

base::Schema<SyncOptions> sync_schema() {
  using O = SyncOptions;
  return {"sync.dp",
          "How the replicas of the dp axis come to agree.",
          {{"kind", &O::kind, "The rule.", base::one_of(rule_names())},
           {"bucket_mib", &O::bucket_mib, "Gradients are reduced in runs of about this size, each as soon as backward has completed it.",
            base::more_than(0)}}};
}

SyncOptions read_dp_sync(base::Recipe& recipe) { return recipe.read(sync_schema()); }

SyncOptions read_island_sync(base::Recipe& recipe) {
  SyncOptions options = recipe.read(island_schema());
  refuse_others(recipe, options.kind);
  if (options.kind == "all_reduce") return options;
  options.exchange = recipe.read(exchange_schema());
  const bool sparse = is_sparse(wire_of(options));
  if (sparse) {
    refuse_wire(options);
    options.exchange = recipe.read(sparse_schema(), options.exchange);
  } else if (recipe.has(fmt::format("{}.keep", kIsland))) {
    base::fail_input("{}.keep: is for wire = topk or randk, and wire is {}: leave the key out or change the wire", kIsland,
                     wire_of(options));
  }
  options.outer.error_feedback = sparse;
  if (options.kind == "diloco" || options.kind == "streaming_diloco") options.outer = recipe.read(diloco_schema(), options.outer);
  if (options.kind == "streaming_diloco") options.outer = recipe.read(streaming_schema(), options.outer);
  if (options.kind == "noloco") options.noloco = recipe.read(noloco_schema());
  if (options.kind == "co2") options.co2 = recipe.read(co2_schema());
  if (options.kind == "gossip") options.gossip = recipe.read(gossip_schema());
  return options;
}

std::vector<base::Section> sync_sections() {
  std::vector<base::Section> sections{sync_schema().section(), island_schema().section()};
  for (Named& one : rule_sections()) sections.push_back(std::move(one.section));
  return sections;
}

std::vector<std::string> island_keys(const SyncOptions& options) {
  std::vector<std::string> all;
  const auto add = [&](const auto& schema, const auto& values) {
    const base::Section section = schema.section();
    const std::vector<base::Setting> settings = schema.values_of(values);
    for (size_t i = 0; i < settings.size(); ++i)
      all.push_back(fmt::format("{}.{} = {}", section.name, section.entries[i].key, base::to_toml(settings[i])));
  };
  add(island_schema(), options);
  add(exchange_schema(), options.exchange);
  if (options.kind == "diloco" || options.kind == "streaming_diloco") add(diloco_schema(), options.outer);
  if (options.kind == "streaming_diloco") add(streaming_schema(), options.outer);
  if (options.kind == "noloco") add(noloco_schema(), options.noloco);
  if (options.kind == "co2") add(co2_schema(), options.co2);
  if (options.kind == "gossip") add(gossip_schema(), options.gossip);
  return all;
}

std::string wire_of(const SyncOptions& options) {
  if (options.exchange.wire != "auto") return options.exchange.wire;
  return options.kind == "streaming_diloco" ? "e3m0" : "fp32";
}

double outer_lr_of(const SyncOptions& options) {
  if (options.outer.outer_lr > 0) return options.outer.outer_lr;
  return options.kind == "streaming_diloco" ? 0.4 : 0.7;
}

double pull_of(const NolocoOptions& options) { return options.pull < 0 ? options.outer_lr : options.pull; }

}  // namespace cairn::sync
