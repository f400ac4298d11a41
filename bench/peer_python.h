#pragma once
#include <string>

#include "study/benches.h"

namespace cairn::study {

// An environment of PyTorch's own, made on first use: the same wheel as the libtorch that Cairn runs on. The path of its interpreter.
std::string peer_python(const BenchOptions& options, base::Log& log);

}  // namespace cairn::study
