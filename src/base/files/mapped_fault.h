// Mapped files that become shorter: a clear end of the program instead of SIGBUS.
#pragma once
#include <cstddef>
#include <span>

namespace cairn::base {

// While a range is registered, a page of it that can no longer be read (the file became shorter, or its disk failed) ends the process with
// exit code 2 and a line on standard error that names `path`. Other causes of SIGBUS keep their effect. `path` must live as long as the
// registration. Thread-safe. Beyond 8192 ranges nothing is registered.
void register_mapping(std::span<const std::byte> bytes, const char* path);
void forget_mapping(std::span<const std::byte> bytes);

}  // namespace cairn::base
