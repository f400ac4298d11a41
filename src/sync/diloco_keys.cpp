// The recipe keys of diloco.cpp.
#include "base/recipe.h"
#include "sync/islands/compressor.h"
#include "sync/rules.h"

namespace cairn::sync {

RuleKeys diloco_keys() {
  using O = OuterOptions;
  const base::Schema<O> schema{
      "sync.island",
      "With kind = \"diloco\" or \"streaming_diloco\": islands take local steps; what they moved by is the gradient of an outer optimizer.",
      {{"every", &O::every, "Steps between two rounds.", base::at_least(1)},
       {"outer_lr", &O::outer_lr, "Learning rate of the outer optimizer. 0: 0.7 for diloco, 0.4 for streaming_diloco.", base::at_least(0)},
       {"outer_momentum", &O::outer_momentum, "Nesterov momentum of the outer optimizer.", base::between(0, 0.999)},
       {"outer_warmup", &O::outer_warmup,
        "Rounds in which the outer momentum grows from 0. The first updates of a fresh model are long and all in one direction, and full "
        "momentum would overshoot. -1: 20, or all rounds of a shorter run.",
        base::at_least(-1)},
       {"start_after", &O::start_after,
        "Up to this step the islands average their parameters after every step, as one synchronous run; then rounds begin. Each such step "
        "sends the whole model.",
        base::at_least(0)},
       {"weights", &O::weights, "How much each island counts: all the same, or by the tokens that it learned from.", kIslandWeightsNames},
       {"pace", &O::pace,
        "equal: every island takes every step; own: slower islands skip steps, so that all reach a round at about the same time (use "
        "weights = \"tokens\" with it).",
        kPaceNames},
       {"error_feedback", &O::error_feedback,
        "What the wire rounds away or drops stays on the island and is part of its next message. Default: true with topk and randk."}}};
  RuleKeys keys = keys_in(schema, &SyncOptions::outer);
  keys.read = [schema](base::Recipe& recipe, SyncOptions& options) {
    options.outer.error_feedback = is_sparse(wire_of(options));
    options.outer = recipe.read(schema, options.outer);
  };
  return keys;
}

RuleKeys streaming_diloco_keys() {
  using O = OuterOptions;
  return keys_in(
      base::Schema<O>{"sync.island",
                      "With kind = \"streaming_diloco\": the model travels fragment by fragment while the islands train on.",
                      {{"fragment_layers", &O::fragment_layers, "Layers of a fragment, about.", base::at_least(1)},
                       {"pattern", &O::pattern, "Which layers a fragment has: every n-th layer, or neighbours.", kFragmentPatternNames},
                       {"extras", &O::extras, "Parameters outside of layers: a fragment of their own, or each in the smallest one.",
                        kExtraParametersNames},
                       {"delay", &O::delay, "Steps that a fragment may take to travel; the islands train on meanwhile.", base::at_least(0)},
                       {"blend", &O::blend, "Share of the island's own values that stays when a fragment arrives.", base::between(0, 1)}}},
      &SyncOptions::outer);
}

}  // namespace cairn::sync
