// Small decoders on text, on islands that are threads of this process: what the pilot cannot show.
#pragma once
#include <string>
#include <vector>

#include "proofs/layout_run.h"

namespace cairn::study {

// About 100 thousand parameters, or three million where `full`; `steps` steps of 16 samples a rank.
base::Recipe island_decoder(const ProofOptions& options, int64_t steps);
double held_out_loss(const base::Recipe& recipe, int ranks, const std::filesystem::path& out);

}  // namespace cairn::study
