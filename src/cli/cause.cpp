#include "cli/cause.h"

#include <fmt/format.h>

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

std::string explain_gpu_out_of_memory(std::string_view from_libtorch) {
  std::string_view facts =
      from_libtorch.substr(0, from_libtorch.find(" If reserved but unallocated"));  // what follows is about PyTorch's own settings
  while (facts.ends_with('.') || facts.ends_with(' ')) facts.remove_suffix(1);
  return fmt::format(
      "{}. To use less: a smaller train.micro_batch, train.loss_chunks = 4, recompute.mode = \"selective\" or \"full\", "
      "train.precision, "
      "train.parameters and optim.moments = \"bf16\"; log.memory = true shows what uses the memory, `cairn train --dry-run` what a run "
      "needs",
      facts);
}

}  // namespace cairn::cli
