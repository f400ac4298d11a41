#include "memory/disk/io_class.h"

namespace cairn::memory {

std::string_view name(IoClass io_class) {
  static constexpr std::string_view kNames[kIoClasses] = {"parameters", "activations", "states", "write-back"};
  return kNames[static_cast<size_t>(io_class)];
}

}  // namespace cairn::memory
