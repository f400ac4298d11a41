#include "unlearn/options.h"

namespace cairn::unlearn {

base::Schema<UnlearnOptions> unlearning_schema() {
  using O = UnlearnOptions;
  return {
      "unlearning",
      "A store of adapters from which training records can be deleted (cairn unlearn).",
      {{"method", &O::method,
        "s3t: each slice of the data trains adapters on layers of its own, so that a deletion switches layers off. sisa: each slice "
        "trains adapters on all layers, and a deletion trains again from an earlier checkpoint.",
        kMethodNames},
       {"shards", &O::shards, "Parts of the data with models of their own, whose answers are averaged.", base::between(1, 4096)},
       {"slices", &O::slices, "Parts of a shard, trained one after the other.", base::between(1, 64)},
       {"budget", &O::budget, "Orders in which each shard is trained; sisa has one.", base::between(1, 4096)},
       {"orders", &O::orders,
        "Which orders: cyclic (rotations, then rotations behind common beginnings), matching (slices that are likely to lose records "
        "late), random, or all of them.",
        kOrderKindNames},
       {"delete_probs", &O::delete_probs,
        "Of matching: a file with the probability that a deletion falls into each slice: `slices` numbers, or `shards * slices`.",
        base::path()},
       {"expected_deletions", &O::expected_deletions, "Of matching: deletions that orders are chosen for.", base::between(1, 1e9)},
       {"data", &O::data, "What a stage trains on: cumulative (the slices so far), or slice (its own alone, which is cheaper).",
        kStageDataNames},
       {"layers_per_stage", &O::layers_per_stage, "Layers that a stage has adapters on, from the last layer down. 0: layers / slices.",
        base::at_least(0)},
       {"aggregate", &O::aggregate,
        "How shards answer together: mean_log_prob (mean of the logarithms of next-token probabilities), mean_prob (of the "
        "probabilities), or vote (for classes alone).",
        kAggregateNames},
       {"prefix", &O::prefix,
        "Which stages answer for a shard: those of the order with the longest live beginning (longest), or those with the lowest loss on "
        "`validation` (best).",
        kPrefixNames},
       {"validation", &O::validation,
        "A file of texts that nobody may ask to delete: the loss on it is measured after each stage. Empty: none is.", base::path()},
       {"cache_bytes", &O::cache_bytes,
        "Of s3t: host memory for what the layers below a stage compute, so that only its first epoch runs them "
        "(train.cache_frozen_bytes). 0: none.",
        base::at_least(0)},
       {"partition_seed", &O::partition_seed, "Decides which record lies in which slice. Fixed for the life of a store.",
        base::at_least(0)}}};
}

}  // namespace cairn::unlearn
