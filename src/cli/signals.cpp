#include "cli/signals.h"

#include <csignal>
#include <string_view>
#include <unistd.h>

namespace cairn::cli {
namespace {

base::Stop stop_request;  // a signal handler can reach nothing else

void handle(int signal) {
  if (signal == SIGINT && stop_request.requested()) _exit(130);
  stop_request.request(signal);
}

void end_now(int) {
  constexpr std::string_view kSaid = "stopped before the run began\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSaid.data(), kSaid.size());
  _exit(0);
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

}  // namespace

Signals::Signals() {
  install(handle);
  // The agent starts its ranks with these blocked: a stop that came before this line is handled now.
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGTERM);
  sigaddset(&held, SIGINT);
  sigprocmask(SIG_UNBLOCK, &held, nullptr);
}
Signals::~Signals() { install(SIG_DFL); }
const base::Stop& Signals::stop() const { return stop_request; }

SignalsBeforeRun::SignalsBeforeRun() { install(end_now); }
SignalsBeforeRun::~SignalsBeforeRun() { install(SIG_DFL); }

}  // namespace cairn::cli
