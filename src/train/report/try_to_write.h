#pragma once
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "base/log.h"

namespace cairn::train {

// Runs `write`, on which training does not depend: the report, a trace. A failure of the disk, or of a file that is gone, becomes a
// warning.
template <typename Write>
void try_to_write(base::Log& log, std::string_view what, const Write& write) {
  const auto warn = [&](const char* why) { log.warn("no {}: {}; the run is not affected", what, why); };
  try {
    write();
  } catch (const Error& error) {
    using Kind = Error::Kind;
    if (error.kind() != Kind::disk && error.kind() != Kind::bad_input && error.kind() != Kind::corrupt_file) throw;
    warn(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    warn(error.what());
  }
}

}  // namespace cairn::train
