#pragma once
#include <string>
#include <vector>

#include "study/benches.h"

namespace cairn::study {

// An environment of PyTorch's own, made on first use: the same wheel as the libtorch that Cairn runs on. The path of its interpreter.
std::string peer_python(const BenchOptions& options, base::Log& log);

// One with other packages, kept under `name`; `cost` says what making it takes.
std::string peer_python(const BenchOptions& options, base::Log& log, const std::string& name, const std::vector<std::string>& packages,
                        const std::string& cost);
// The machine's own interpreter where it has PyTorch in the version that Cairn runs on, else one made for it.
std::string python_with_torch(const BenchOptions& options, base::Log& log);

}  // namespace cairn::study
