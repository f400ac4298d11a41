// The parts of `cairn bench select`, each in a source of its own.
#pragma once
#include <vector>

#include "study/benches.h"

namespace cairn::study {

// Samplers with feedback against the shuffled one (select_samplers.cpp).
std::vector<BenchRow> bench_samplers(const BenchOptions& options, base::Log& log);

// Vectors of documents, written to an index, against the forward pass alone (select_embedding.cpp).
std::vector<BenchRow> bench_embedding(const BenchOptions& options, base::Log& log);

// k-means and exact search against faiss-cpu (select_search.cpp).
std::vector<BenchRow> bench_search(const BenchOptions& options, base::Log& log);

}  // namespace cairn::study
