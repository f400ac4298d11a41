// The keys of [sync.island] that every rule with local steps shares: compression, merging, time limit (ExchangeOptions).
#include <fmt/format.h>

#include "base/check.h"
#include "sync/islands/compressor.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

constexpr const char* kSection = "sync.island";

base::Schema<ExchangeOptions> exchange_schema() {
  using O = ExchangeOptions;
  std::vector<std::string> wires = compressor_names();
  wires.insert(wires.begin(), "auto");
  return {kSection,
          "With any rule by which islands take local steps: how updates travel.",
          {{"wire", &O::wire,
            "How numbers are compressed between islands. auto: e3m0 (4 bits) with streaming_diloco, else fp32. topk: the largest, with "
            "their indices; randk: random ones, the same on all islands. What is dropped stays on the island as a residual and is part of "
            "the next message (diloco, streaming_diloco, co2).",
            base::one_of(std::move(wires))},
           {"merge", &O::merge,
            "How the islands' updates become one (diloco and streaming_diloco). clip: none counts for more than the median norm; trim: of "
            "each number the largest and smallest are dropped; median: of each number.",
            kMergeKindNames},
           {"trim", &O::trim, "With merge = \"trim\": the share that is dropped at each end.", base::between(0, 0.49)},
           {"timeout_s", &O::timeout_s, "A round goes on without an island that sends nothing for this long.", base::more_than(0)},
           {"on_minority", &O::on_minority,
            "What an island does that reaches no majority of the islands. wait: it waits for minority_timeout_s, then saves a snapshot and "
            "ends with exit code 4; stop: the same after timeout_s; continue: after timeout_s it trains on alone. What it trains alone is "
            "dropped when it reaches the others again; if it does not, the run ends with exit code 4.",
            kOnMinorityNames},
           {"minority_timeout_s", &O::minority_timeout_s, "With on_minority = \"wait\". 0: five times timeout_s.", base::at_least(0)}}};
}

base::Schema<ExchangeOptions> sparse_schema() {
  using O = ExchangeOptions;
  return {kSection,
          "With wire = \"topk\" or \"randk\".",
          {{"keep", &O::keep, "The share of the numbers that travels in a round.", base::between(1e-6, 1)}}};
}

// A wire that drops values fits rules that send what was learned since the islands were last identical.
void check_sparse(const SyncOptions& options) {
  const std::string wire = wire_of(options);
  if (const std::string_view why = needs_of(options.kind).no_sparse_wire; !why.empty())
    base::fail_input("{}.wire = {}: {}", kSection, wire, why);
  if (wire == "topk" && (options.exchange.merge == MergeKind::trim || options.exchange.merge == MergeKind::median))
    base::fail_input(
        "{}.merge = {}: with wire = topk most islands leave a number out, and its {} would be nothing: use mean or clip, or wire = randk",
        kSection, base::enum_name(kMergeKindNames, options.exchange.merge),
        options.exchange.merge == MergeKind::trim ? "trimmed mean" : "median");
}

}  // namespace

RuleKeys exchange_keys() {
  RuleKeys keys = keys_in(exchange_schema(), &SyncOptions::exchange);
  keys.read = [](base::Recipe& recipe, SyncOptions& options) {
    options.exchange = recipe.read(exchange_schema());
    if (is_sparse(wire_of(options))) check_sparse(options);
  };
  return keys;
}

RuleKeys sparse_keys() {
  RuleKeys keys = keys_in(sparse_schema(), &SyncOptions::exchange);
  keys.read = [](base::Recipe& recipe, SyncOptions& options) {
    if (is_sparse(wire_of(options)))
      options.exchange = recipe.read(sparse_schema(), options.exchange);
    else if (recipe.has(fmt::format("{}.keep", kSection)))
      base::fail_input("{}.keep: is for wire = topk or randk, and wire is {}: leave the key out or change the wire", kSection,
                       wire_of(options));
  };
  keys.values = nullptr;  // the signature of messages has it (replica_signature.h)
  return keys;
}

}  // namespace cairn::sync
