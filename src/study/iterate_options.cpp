#include "study/iterate_options.h"

namespace cairn::study {

base::Schema<IterateOptions> iterate_schema() {
  using O = IterateOptions;
  return {
      "study",
      "With kind = \"iterate\" (`cairn study iterate`): samples are selected in rounds; after each, clusters that help get more of the "
      "budget.",
      {{"kind", &O::kind, "Which study this recipe is for.", base::one_of({"iterate"})},
       {"method", &O::method, "iterative, or what it is compared with: clusters (one round, quotas alone), random (no clusters).",
        base::one_of({"iterative", "clusters", "random"})},
       {"budget", &O::budget, "Samples to select in all.", base::at_least(1)},
       {"rounds", &O::rounds, "Rounds; each selects an equal part of the budget and trains from the start of the recipe.",
        base::at_least(1)},
       {"clusters", &O::clusters, "Clusters of k-means; 0: as many as give the best silhouette, of 64, 256, 1024 and 4096.",
        base::at_least(0)},
       {"embedding", &O::embedding,
        "What is clustered: features (tables), hidden (hidden states of the model at its start, texts), source (each source is a cluster), "
        "or a column of a table (of data.ignore) that names the cluster. auto: features or hidden."},
       {"layer", &O::layer, "hidden: of which layer: middle, last, or its number."},
       {"quota", &O::quota, "clusters: the budget of a cluster: proportional to its size, or equal.",
        base::one_of({"proportional", "equal"})},
       {"quality", &O::quality,
        "Numbers that samples of a cluster are drawn by: a column of a table (of data.ignore), or a score column of `cairn select`. Empty: "
        "all the same."},
       {"pick", &O::pick, "How: with probabilities in proportion to the quality, to its exponential, the highest, or around the median.",
        base::one_of({"weighted", "softmax", "top", "median"})},
       {"init", &O::init, "Weights of the clusters in the first round: uniform, or by size.", base::one_of({"uniform", "size"})},
       {"scorer", &O::scorer,
        "What a cluster's weight follows. loss_ratio: the logarithm of the loss before training over that after it. perplexity: how much "
        "harder the answers are for the model than its own. reference: whether the label is right, minus whether the model's answer is.",
        base::one_of({"loss_ratio", "perplexity", "reference"})},
       {"reference", &O::reference, "reference: the column of a table (of data.ignore) with the right class."},
       {"score_on", &O::score_on, "selected: the samples that the round added. fresh: as many that are not selected.",
        base::one_of({"selected", "fresh"})},
       {"score_fraction", &O::score_fraction, "The share of them that is scored.", base::between(0.01, 1)},
       {"update", &O::update, "multiplicative: weights times the new figures; replace: the new figures alone.",
        base::one_of({"multiplicative", "replace"})},
       {"floor", &O::floor, "No weight falls below this share of an even one.", base::between(0, 1)},
       {"round_epochs", &O::round_epochs,
        "Epochs of the training of a round, over what is selected so far; 0: as the recipe. The last training is always as the recipe.",
        base::at_least(0)},
       {"round_steps", &O::round_steps, "Steps of the training of a round; 0: as the recipe. The last training is always as the recipe.",
        base::at_least(0)},
       {"device", &O::device, "Where models are trained; cuda: by one rank.", base::one_of({"cpu", "cuda"})}}};
}

}  // namespace cairn::study
