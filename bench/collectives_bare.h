#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::study {

// What this machine's memory allows: two processes that share nothing but memory and a flag each do what an all_reduce or an all_gather of
// two ranks must do at the least: read half of it where the other wrote it (and, of an all_reduce, half of the results). Median
// microseconds for each size, buffers rewritten before each call.
std::vector<double> bare_times(const std::string& operation, const std::vector<int64_t>& sizes);

}  // namespace cairn::study
