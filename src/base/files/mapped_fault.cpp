#include "base/files/mapped_fault.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <signal.h>
#include <unistd.h>

namespace cairn::base {
namespace {

constexpr int kBadInput = 2;  // Error::exit_code of bad_input and corrupt_file

// A signal handler can reach nothing but static memory. It reads ranges without a lock; a path is read only in the range of a fault, whose
// owner is alive, since it reads there.
struct Mapping {
  std::atomic<uintptr_t> begin, end;
  std::atomic<const char*> path;
};
std::array<Mapping, 8192> mappings;
struct sigaction earlier_action;

void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nobody can be told
}

// Async-signal-safe.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;  // by a process (kill, raise), and not by an access to memory: there is no address
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    if (sent || at < mapping.begin.load() || at >= mapping.end.load()) continue;
    say("\ncairn: ");
    say(mapping.path.load());
    say(": became shorter while it was in use, or its disk failed. Restore the file; a run continues with --resume.\n");
    ::_exit(kBadInput);
  }
  ::sigaction(signal, &earlier_action, nullptr);  // not ours: the access is repeated and has its usual effect
  if (sent) ::raise(signal);                      // nothing is repeated; it arrives when this handler returns
}

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, &earlier_action);
  });
}

uintptr_t begin_of(std::span<const std::byte> bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); }

}  // namespace

void register_mapping(std::span<const std::byte> bytes, const char* path) {
  if (bytes.empty()) return;
  install_once();
  for (Mapping& mapping : mappings) {
    uintptr_t free = 0;
    if (!mapping.begin.compare_exchange_strong(free, begin_of(bytes))) continue;
    mapping.path = path;
    mapping.end = begin_of(bytes) + bytes.size();
    return;
  }
}

void forget_mapping(std::span<const std::byte> bytes) {
  for (Mapping& mapping : mappings) {
    if (bytes.empty() || mapping.begin.load() != begin_of(bytes)) continue;
    mapping.end = 0;
    mapping.begin = 0;
    return;
  }
}

}  // namespace cairn::base
