#include "data/samples/sampler_options.h"

namespace cairn::data {

base::Schema<SamplerOptions> sampler_schema() {
  using O = SamplerOptions;
  return {
      "sampler",
      "What the samplers of data.sampler read.",
      {{"ratio", &O::ratio, "rs2: the share of the samples that each round draws.", base::between(0, 1)},
       {"replacement", &O::replacement, "rs2: whether rounds are independent. false: no sample comes again before all others came."},
       {"fixed", &O::fixed, "rs2: one random subset for the whole run instead of a new one each round (the baseline)."},
       {"stratify", &O::stratify, "rs2: each round has its share of every class of data.label."},
       {"tail", &O::tail, "rs2: samples left at the end of a cycle, too few for a round: drop them, or carry them into the next round.",
        kRoundTailNames},
       {"prune", &O::prune,
        "seta, infobatch: the share that is left out at random: of all samples (seta, usually 0), or of those with a loss below the mean "
        "(infobatch, usually 0.5). -1: as usual.",
        base::between(-1, 0.9)},
       {"groups", &O::groups, "seta: groups of samples by loss. tas: clusters of queries, where none are given.",
        base::between(1, 1 << 20)},
       {"window", &O::window, "seta: the share of the groups that an epoch trains on.", base::between(0, 1)},
       {"stop_at", &O::stop_at, "seta, infobatch: the share of the run after which all samples are trained on again.", base::between(0, 1)},
       {"flush_steps", &O::flush_steps, "seta, infobatch: steps after which ranks exchange the losses of their samples.",
        base::at_least(1)},
       {"unseen", &O::unseen, "seta: the score of samples that were not trained on yet: the mean of the others, or their largest.",
        kUnseenScoreNames},
       {"clusters", &O::clusters, "tas: a file with the query ids of one cluster per line; empty: made from the model to start with.",
        base::path()},
       {"clusters_per_batch", &O::clusters_per_batch, "tas: clusters that a batch is drawn from.", base::at_least(1)},
       {"margin_bins", &O::margin_bins,
        "tas: bins over the range of a query's margins; pairs are drawn evenly over the bins. 0: evenly over the pairs.",
        base::between(0, 1000)},
       {"long_cycle", &O::long_cycle, "multigrid: whether frames, size and batch change a few times in each stage of the learning rate."},
       {"short_cycle", &O::short_cycle, "multigrid: whether size and batch change from step to step."},
       {"epoch_factor", &O::epoch_factor, "multigrid: epochs of the run, as a multiple of train.epochs.", base::more_than(0)},
       {"stages", &O::stages, "multigrid: epochs at which the learning rate falls, in terms of train.epochs.", base::more_than(0)},
       {"stage_factor", &O::stage_factor, "multigrid: what the learning rate is multiplied by at each of them.", base::between(0, 1)},
       {"norm_samples", &O::norm_samples, "multigrid: samples that batch normalisation takes its statistics over.", base::at_least(1)},
       {"scale_lr", &O::scale_lr, "multigrid: whether the learning rate follows the batch of the long cycle."},
       {"evaluations_per_shape", &O::evaluations_per_shape, "multigrid: evaluations while a shape of the long cycle lasts.",
        base::at_least(0)},
       {"precise_norm_batches", &O::precise_norm_batches,
        "multigrid: batches from which the statistics of batch normalisation are computed before an evaluation.", base::at_least(0)}}};
}

}  // namespace cairn::data
