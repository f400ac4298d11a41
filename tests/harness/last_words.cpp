// What a test binary says before it dies: the stack of a thread that crashes, and those of all threads when a case takes longer than five
// minutes. CTest ends a binary without a word after ten.
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <poll.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include <dirent.h>
#include <gtest/gtest.h>

namespace cairn::harness {
namespace {

constexpr unsigned kLimit = 300;  // seconds
constexpr int kShowStack = SIGUSR2;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // and the sanitizer shows the stack of a crash
#else
constexpr bool kSanitized = false;
#endif

void say(const char* text) { (void)!::write(STDOUT_FILENO, text, std::strlen(text)); }

void show_stack() {
  std::array<void*, 64> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), static_cast<int>(frames.size())), STDOUT_FILENO);
}

void on_crash(int signal) {
  ::signal(signal, SIG_DFL);
  say("\nthe test binary dies of the signal ");
  say(::strsignal(signal));
  say(":\n");
  show_stack();
  ::raise(signal);
}

void on_show_stack(int) {
  say("a thread:\n");
  show_stack();
}

void on_limit(int) {
  say("\nthe case has taken five minutes; all threads:\n");
  if (DIR* threads = ::opendir("/proc/self/task"))
    while (const dirent* entry = ::readdir(threads))
      if (const long id = std::strtol(entry->d_name, nullptr, 10); id > 0) {
        ::syscall(SYS_tgkill, ::getpid(), id, kShowStack);
        ::poll(nullptr, 0, 100);  // one after the other
      }
  ::signal(SIGABRT, SIG_DFL);
  std::abort();
}

class CaseLimit final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { ::alarm(kLimit); }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }
};

const bool installed = [] {
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);  // loads what it needs while it may
  if constexpr (!kSanitized)
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) ::signal(signal, on_crash);
  ::signal(kShowStack, on_show_stack);
  ::signal(SIGALRM, on_limit);
  testing::UnitTest::GetInstance()->listeners().Append(new CaseLimit);
  return true;
}();

}  // namespace
}  // namespace cairn::harness
