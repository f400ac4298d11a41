#pragma once
#include <exception>
#include <vector>

namespace cairn::cli {

// Of how ranks ended: throws the cause, not its echo on the ranks that lost a peer to it. Nothing where all went well.
void rethrow_cause(const std::vector<std::exception_ptr>& ended);

}  // namespace cairn::cli
