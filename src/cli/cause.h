#pragma once
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// Of how ranks ended: throws the cause, not its echo on the ranks that lost a peer to it. Nothing where all went well.
void rethrow_cause(const std::vector<std::exception_ptr>& ended);

// What a user can do about a GPU whose memory is full, after what libtorch says of how full it is.
std::string explain_gpu_out_of_memory(std::string_view from_libtorch);

}  // namespace cairn::cli
