#include "cli/cause.h"

#include "base/error.h"

namespace cairn::cli {

void rethrow_cause(const std::vector<std::exception_ptr>& ended) {
  std::exception_ptr echo;
  for (const std::exception_ptr& error : ended) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      if (e.kind() != Error::Kind::lost_peer) throw;
      echo = error;
    }
  }
  if (echo) std::rethrow_exception(echo);
}

}  // namespace cairn::cli
