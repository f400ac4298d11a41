// What the guides of multigrid training and of dense retrieval show (`cairn prove SLUG --pictures FOLDER`).
#pragma once
#include <array>
#include <string>
#include <vector>

#include "study/claims.h"

namespace cairn::study {

// multigrid-schedule.svg: frames, size and clips of a batch over the epochs of a run.
void draw_multigrid_schedule(const ProofOptions& options);

// tas-balanced-mrr.svg: of each inner seed, MRR@10 of random and topical batches, each alone and with the in-batch loss.
using RetrievalCells = std::array<double, 4>;  // random, random with, topical, topical with
void draw_retrieval_cells(const ProofOptions& options, const std::vector<RetrievalCells>& of_seeds);

}  // namespace cairn::study
