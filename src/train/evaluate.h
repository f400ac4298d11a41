#pragma once

namespace cairn::train {

struct Job;

// Mean loss over the held-out samples (at most eval.samples of them), shared out over the replicas; the same on all of them. NaN
// where nothing is held out.
double held_out_loss(Job& job);

}  // namespace cairn::train
