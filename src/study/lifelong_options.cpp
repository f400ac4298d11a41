#include "study/lifelong_options.h"

namespace cairn::study {

base::Schema<LifelongOptions> lifelong_schema() {
  using O = LifelongOptions;
  return {
      "study",
      "With kind = \"lifelong\" (`cairn study lifelong`): datasets arrive one after the other; a bounded pool keeps what the model still "
      "needs.",
      {{"kind", &O::kind, "Which study this recipe is for.", base::one_of({"lifelong"})},
       {"method", &O::method,
        "adapt: selects from the pool by clusters and scores. What it is compared with: sequential (the newest dataset alone), replay "
        "(the pool, at random).",
        base::one_of({"adapt", "sequential", "replay"})},
       {"datasets", &O::datasets, "Files in the order in which they arrive. They take the place of data.path.", base::path()},
       {"budget", &O::budget, "Samples that the model is trained on after each arrival.", base::at_least(1)},
       {"pool_cap", &O::pool_cap, "Most samples that the pool keeps; 0: no bound.", base::at_least(0)},
       {"clusters", &O::clusters, "Clusters of the pool; 0: chosen from 5 to 50 by the elbow of the inertia.", base::at_least(0)},
       {"scores", &O::scores,
        "What samples of a cluster may be ranked by: ppl (mean loss), el2n (mean error), entropy (of the prediction), grand (norm of the "
        "gradient). Each cluster uses the one that spreads its samples most."},
       {"image", &O::image, "Score ig: the columns that hold the image. It compares losses without and with them."},
       {"within", &O::within, "Choice inside a cluster: ccs (across the range of scores), min, mid, or random.",
        base::one_of({"ccs", "min", "mid", "random"})},
       {"prune_vectors", &O::prune_vectors, "What decides which samples are similar when the pool is pruned: hidden states, or gradients.",
        base::one_of({"hidden", "gradient"})},
       {"skills", &O::skills, "Tables: the column (of data.ignore) by which held-out rows are reported. Empty: by dataset."},
       {"device", &O::device, "Where the model is trained; cuda: by one rank.", base::one_of({"cpu", "cuda"})}}};
}

base::Schema<VectorOptions> vector_schema() {
  using O = VectorOptions;
  return {
      "study.vectors",
      "The vectors that describe samples of the pool for clustering.",
      {{"kind", &O::kind, "gradient: of the sample's loss, projected; hidden: mean hidden states.", base::one_of({"gradient", "hidden"})},
       {"layer", &O::layer, "Whose trained weights: middle, last, all, or a number from 0."},
       {"dim", &O::dim, "Numbers of a projected gradient, a multiple of 128.", base::between(128, 1 << 20)},
       {"type", &O::type, "sgd: the gradient; sign: its signs; zero_order: an estimate from losses at perturbed weights.",
        base::one_of({"sgd", "sign", "zero_order"})},
       {"seed", &O::seed, "Of the projection.", base::at_least(0)},
       {"directions", &O::directions, "zero_order: perturbations that are tried.", base::between(1, 1 << 20)},
       {"perturbation", &O::perturbation, "zero_order: their size.", base::more_than(0)}}};
}

std::vector<base::Section> lifelong_sections() { return {lifelong_schema().section(), vector_schema().section()}; }

}  // namespace cairn::study
