#include "study/work_queue.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/stop.h"

namespace cairn::study {
namespace {

constexpr int kPollMs = 200;
constexpr int64_t kFailed = -1;  // in place of a count: an error's kind and words follow

bool write_all(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::read(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

struct Answer {
  std::vector<double> result;
  std::optional<Error> error;
};

std::optional<Answer> read_answer(int fd) {
  int64_t count = 0;
  if (!read_all(fd, &count, sizeof count)) return std::nullopt;
  Answer answer;
  if (count >= 0) {
    answer.result.resize(static_cast<size_t>(count));
    if (!read_all(fd, answer.result.data(), answer.result.size() * sizeof(double))) return std::nullopt;
    return answer;
  }
  int64_t kind = 0, bytes = 0;
  if (!read_all(fd, &kind, sizeof kind) || !read_all(fd, &bytes, sizeof bytes)) return std::nullopt;
  std::string words(static_cast<size_t>(bytes), '\0');
  if (!read_all(fd, words.data(), words.size())) return std::nullopt;
  answer.error.emplace(static_cast<Error::Kind>(kind), words);
  return answer;
}

void answer_error(int fd, Error::Kind kind, const std::string& words) {
  const int64_t head[] = {kFailed, static_cast<int64_t>(kind), static_cast<int64_t>(words.size())};
  write_all(fd, head, sizeof head) && write_all(fd, words.data(), words.size());
}

// What a worker does until its coordinator closes the socket.
void work(int fd, const std::function<std::vector<double>(int64_t)>& compute) {
  at::set_num_threads(1);
  for (int64_t unit = 0; read_all(fd, &unit, sizeof unit);) {
    try {
      const std::vector<double> result = compute(unit);
      const auto count = static_cast<int64_t>(result.size());
      if (!write_all(fd, &count, sizeof count) || !write_all(fd, result.data(), result.size() * sizeof(double))) return;
    } catch (const Error& error) {
      return answer_error(fd, error.kind(), error.what());
    } catch (const std::exception& error) {
      return answer_error(fd, Error::Kind::broken_invariant, error.what());
    }
  }
}

struct Worker {
  pid_t pid = -1;
  int fd = -1;
  std::optional<int64_t> unit = {};  // that it works on
};

class Coordinator {
 public:
  explicit Coordinator(WorkQueue queue) : queue_(std::move(queue)), next_(queue_.first), due_(queue_.first) {}
  ~Coordinator() {
    for (Worker& one : workers_) end(one);
  }

  bool run() {
    while (!deliver_known()) {
      if (queue_.stop && queue_.stop->requested()) return false;
      if (queue_.processes == 1) {
        const std::optional<int64_t> unit = take();
        if (unit) arrive(*unit, queue_.compute(*unit));
        continue;
      }
      hand_out();
      wait();
    }
    return true;
  }

 private:
  // Delivers results in order as far as they are known; true: all are, or there are enough.
  bool deliver_known() {
    for (; queue_.end < 0 || due_ < queue_.end; ++due_) {
      const auto found = queue_.known.find(due_);
      if (found == queue_.known.end()) return false;
      const std::vector<double> result = std::move(found->second);
      queue_.known.erase(found);
      if (!queue_.deliver(due_, result)) return true;
    }
    return true;
  }

  void arrive(int64_t unit, std::vector<double> result) {
    if (queue_.arrived) queue_.arrived(unit, result);
    queue_.known[unit] = std::move(result);
  }

  // The next unit to compute. Workers run ahead of the unit that is due by a few only, so that little is computed in vain.
  std::optional<int64_t> take() {
    if (!again_.empty()) {
      const int64_t unit = *again_.begin();
      again_.erase(again_.begin());
      return unit;
    }
    while (queue_.known.count(next_) > 0 || next_ < due_) ++next_;
    if ((queue_.end >= 0 && next_ >= queue_.end) || next_ >= due_ + 8 * queue_.processes) return std::nullopt;
    return next_++;
  }

  void start() {
    int ends[2];
    CAIRN_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair: {}", std::strerror(errno));
    const pid_t parent = ::getpid(), child = ::fork();
    CAIRN_CHECK(child >= 0, "fork: {}", std::strerror(errno));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::close(ends[0]);
      for (const Worker& one : workers_) ::close(one.fd);
      work(ends[1], queue_.compute);
      ::_exit(0);
    }
    ::close(ends[1]);
    workers_.push_back({.pid = child, .fd = ends[0]});
    if (queue_.on_start) queue_.on_start(child);
  }

  static void end(Worker& one) {
    if (one.pid < 0) return;
    ::close(one.fd);
    ::kill(one.pid, SIGKILL);
    ::waitpid(one.pid, nullptr, 0);
    one.pid = -1;
  }

  void hand_out() {
    while (static_cast<int>(workers_.size()) < queue_.processes) start();
    for (Worker& one : workers_) {
      if (one.unit) continue;
      const std::optional<int64_t> unit = take();
      if (!unit) return;
      one.unit = unit;
      write_all(one.fd, &*unit, sizeof *unit);  // a worker that is gone is noticed below
    }
  }

  void wait() {
    std::vector<pollfd> wanted;
    for (const Worker& one : workers_) wanted.push_back({one.fd, POLLIN, 0});
    const int ready = ::poll(wanted.data(), wanted.size(), kPollMs);
    CAIRN_CHECK(ready >= 0 || errno == EINTR, "poll: {}", std::strerror(errno));
    for (size_t i = wanted.size(); ready > 0 && i-- > 0;)
      if (wanted[i].revents != 0) hear(i);
  }

  void hear(size_t which) {
    Worker& one = workers_[which];
    std::optional<Answer> answer = read_answer(one.fd);
    if (answer && answer->error) throw *answer->error;
    if (answer && one.unit) {
      const int64_t unit = *one.unit;
      one.unit.reset();
      return arrive(unit, std::move(answer->result));
    }
    if (one.unit) again_.insert(*one.unit);
    end(one);
    workers_.erase(workers_.begin() + static_cast<int64_t>(which));
    if (++lost_ > queue_.restarts)
      throw Error(Error::Kind::lost_peer, fmt::format("{} worker processes were lost: start the study again, it goes on", lost_));
  }

  WorkQueue queue_;
  std::vector<Worker> workers_;
  std::set<int64_t> again_;  // units whose worker was lost
  int64_t next_, due_;       // the next unit to hand out; the next one to deliver
  int64_t lost_ = 0;
};

}  // namespace

bool run_queue(WorkQueue queue) { return Coordinator(std::move(queue)).run(); }

}  // namespace cairn::study
