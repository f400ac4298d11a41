#pragma once
#include <cstddef>
#include <cstdint>

namespace cairn::comm {

// memcpy with non-temporal stores where the processor has them: for long results that nobody reads soon. It keeps the caches as they are
// and saves the read of each destination line. The ranges must not overlap.
void stream_copy(std::byte* to, const std::byte* from, int64_t bytes);

}  // namespace cairn::comm
