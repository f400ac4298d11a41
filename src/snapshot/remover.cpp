#include "snapshot/remover.h"

#include <system_error>
#include <utility>

namespace cairn::snapshot {

void Remover::take(std::filesystem::path folder) {
  const std::scoped_lock lock(mutex_);
  removing_ = std::async(std::launch::async, [before = std::move(removing_), folder = std::move(folder)] {
    if (before.valid()) before.wait();
    std::error_code ignored;  // harmless if it remains
    std::filesystem::remove_all(folder, ignored);
  });
}

void Remover::wait() {
  std::future<void> removing;
  {
    const std::scoped_lock lock(mutex_);
    removing = std::move(removing_);
  }
  if (removing.valid()) removing.wait();
}

}  // namespace cairn::snapshot
