#pragma once
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// Throws the exception that ended the ranks: the cause, not the lost_peer errors that follow from it on other ranks. Does nothing if all
// ranks ended well.
void rethrow_cause(const std::vector<std::exception_ptr>& ended);

// libtorch's out-of-memory message, followed by the recipe keys that save GPU memory.
std::string explain_gpu_out_of_memory(std::string_view from_libtorch);

}  // namespace cairn::cli
