// The parts of `cairn bench select`, each in a source of its own.
#pragma once
#include <vector>

#include "study/benches.h"

namespace cairn::study {

// Samplers with feedback against the shuffled one (select_samplers.cpp).
std::vector<BenchRow> bench_samplers(const BenchOptions& options, base::Log& log);

}  // namespace cairn::study
