// The parts of `cairn bench moe`.
#pragma once
#include <string>
#include <vector>

#include "study/benches.h"

namespace cairn::study {

// On a GPU: grouped products, and whole steps against compiled PyTorch.
void bench_moe_products(std::vector<BenchRow>& rows, base::Log& log);
void bench_moe_gpu_step(const BenchOptions& options, std::vector<BenchRow>& rows, base::Log& log);

// Tokens per second of bench/moe_peer.py with these settings (JSON).
double moe_peer_rate(const BenchOptions& options, const std::string& python, const std::string& settings);

}  // namespace cairn::study
