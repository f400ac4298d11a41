#pragma once

namespace cairn::train {

struct Job;

// Replaces the running statistics of batch normalisation by those of the batches that the sampler names for an evaluation now
// (Sampler::norm_draws), under the present weights. Does nothing where it names none. Collective.
void compute_precise_norms(Job& job);

}  // namespace cairn::train
