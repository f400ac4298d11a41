#include "elastic/keeper.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "elastic/packet.h"

extern char** environ;

namespace cairn::elastic {
namespace {

[[noreturn]] void fail(const char* what) { throw Error(Error::Kind::bad_input, fmt::format("keeper: {}: {}", what, std::strerror(errno))); }

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Runs in the child. It makes only async-signal-safe calls, because the parent has threads.
[[noreturn]] void become_keeper(char* const* argv, char* const* env, int door, int agent_pipe) {
  ::setsid();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  for (const int fd : {door, agent_pipe}) ::fcntl(fd, F_SETFD, 0);
  ::execve(argv[0], argv, env);
  ::_exit(127);
}

}  // namespace

class KeeperHandle::Impl {
 public:
  explicit Impl(KeeperOptions options) : options_(std::move(options)) {
    CAIRN_CHECK(!options_.argv.empty(), "no program to start");
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) fail("socketpair");
    door_ = File(ends[0]);
    inside_ = File(ends[1]);
    wake_ = File(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { tend(); });
  }
  ~Impl() {
    ended_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const auto woken = ::write(wake_.fd(), &one, sizeof one);
    thread_.join();
    if (agent_pipe_.fd() >= 0) {
      [[maybe_unused]] const auto said = ::send(agent_pipe_.fd(), "e", 1, MSG_NOSIGNAL);  // an orderly end
    }
    const base::RealClock clock;
    while (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (clock.now() > std::chrono::seconds(2)) ::kill(pid_, SIGKILL);
      ::poll(nullptr, 0, 2);
    }
  }
  int fd() const { return door_.fd(); }
  int pid() const { return pid_; }

 private:
  // Starts a keeper when a rank calls and none runs. Notices its end.
  void tend() {
    while (!ended_) {
      std::array<pollfd, 2> files{pollfd{wake_.fd(), POLLIN, 0}, pollfd{pid_ > 0 ? process_.fd() : inside_.fd(), POLLIN, 0}};
      ::poll(files.data(), files.size(), 1000);
      if (ended_ || !files[1].revents) continue;
      if (pid_ <= 0) {
        start();
      } else if (const int pid = pid_; ::waitpid(pid, nullptr, WNOHANG) == pid) {
        pid_ = -1;
        if (options_.tell)
          options_.tell(
              fmt::format("the keeper of this node (process {}) is gone, and the snapshots in its memory with it: another one "
                          "starts when ranks call",
                          pid));
        ::poll(nullptr, 0, 100);  // one that cannot start must not be started in a tight loop
      }
    }
  }

  void start() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    agent_pipe_ = File(ends[1]);
    const File theirs(ends[0]);
    std::vector<std::string> argv = options_.argv, env;
    const std::string own = std::string(kKeeperVariable) + "=";
    for (char** one = environ; *one; ++one)
      if (std::string_view(*one).substr(0, own.size()) != own) env.emplace_back(*one);
    env.push_back(own + fmt::format("{},{},{},{}", inside_.fd(), theirs.fd(),
                                    std::chrono::duration_cast<std::chrono::milliseconds>(options_.orphan_limit).count(),
                                    options_.address));
    const auto argv_list = pointers(argv), env_list = pointers(env);
    const pid_t pid = ::fork();
    if (pid == 0) become_keeper(argv_list.data(), env_list.data(), inside_.fd(), theirs.fd());
    if (pid < 0) return;
    process_ = File(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    pid_ = pid;
  }

  KeeperOptions options_;
  File door_, inside_;  // the two ends of the door
  File agent_pipe_;           // a pipe whose other end the keeper reads: closed when this process is gone
  File wake_, process_;
  std::atomic<int> pid_{-1};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

KeeperHandle::KeeperHandle() = default;
KeeperHandle::KeeperHandle(KeeperHandle&& other) noexcept = default;
KeeperHandle& KeeperHandle::operator=(KeeperHandle&& other) noexcept = default;
KeeperHandle::~KeeperHandle() = default;
int KeeperHandle::fd() const { return impl_ ? impl_->fd() : -1; }
int KeeperHandle::pid() const { return impl_ ? impl_->pid() : -1; }

KeeperHandle start_keeper(KeeperOptions options) {
  KeeperHandle handle;
  handle.impl_ = std::make_unique<KeeperHandle::Impl>(std::move(options));
  return handle;
}

}  // namespace cairn::elastic
