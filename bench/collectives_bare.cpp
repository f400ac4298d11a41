#include "bench/collectives_bare.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/dtype.h"

namespace cairn::study {
namespace {

struct Flag {
  alignas(128) std::atomic<uint64_t> come;
};

// Memory that both processes see.
class Common {
 public:
  explicit Common(size_t bytes)
      : bytes_(bytes), memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    CAIRN_CHECK(memory_ != MAP_FAILED, "no {} bytes of shared memory", bytes);
  }
  ~Common() { ::munmap(memory_, bytes_); }
  Common(const Common&) = delete;
  Common& operator=(const Common&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
};

class Side {
 public:
  Side(int me, Flag* flags, std::byte* memory, int64_t longest)
      : me_(me), flags_(flags), x_(memory + me * 2 * longest), y_(x_ + longest), theirs_(memory + (1 - me) * 2 * longest) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    ::sched_setaffinity(0, sizeof core, &core);  // as the ranks are; where it cannot be, the system chooses
  }

  double measure(const std::string& operation, int64_t bytes) {
    const int calls = bytes <= 65536 ? 1000 : bytes <= 1 << 20 ? 200 : 11;
    const base::RealClock clock;
    std::vector<double> seconds;
    std::memset(y_, 0, static_cast<size_t>(bytes));
    for (int call = -calls / 5; call < calls; ++call) {
      std::fill_n(reinterpret_cast<float*>(x_), bytes / 4, static_cast<float>(me_ + call));
      meet();
      const auto begun = clock.now();
      operation == "all_reduce" ? reduce(bytes / 2) : gather(bytes / 2);
      meet();
      if (call >= 0) seconds.push_back(base::seconds(clock.now() - begun));
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] * 1e6;
  }

 private:
  void meet() {
    flags_[me_].come.store(++come_, std::memory_order_release);
    while (flags_[1 - me_].come.load(std::memory_order_acquire) < come_) {
    }
  }

  void reduce(int64_t half) {
    const int64_t mine = me_ * half, other = (1 - me_) * half;
    const void* sources[] = {x_ + mine, theirs_ + mine};
    comm::combine(comm::Reduce::sum, comm::Dtype::f32, x_ + mine, sources, half / 4);
    meet();
    std::memcpy(x_ + other, theirs_ + other, static_cast<size_t>(half));
  }

  void gather(int64_t half) {
    std::memcpy(y_ + me_ * half, x_, static_cast<size_t>(half));
    std::memcpy(y_ + (1 - me_) * half, theirs_, static_cast<size_t>(half));
  }

  int me_;
  Flag* flags_;
  std::byte *x_, *y_, *theirs_;
  uint64_t come_ = 0;
};

}  // namespace

std::vector<double> bare_times(const std::string& operation, const std::vector<int64_t>& sizes) {
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const Common flags(2 * sizeof(Flag)), memory(static_cast<size_t>(4 * longest));
  const auto run = [&](int me) {
    Side side(me, reinterpret_cast<Flag*>(flags.data()), memory.data(), longest);
    std::vector<double> times;
    for (const int64_t bytes : sizes) times.push_back(side.measure(operation, bytes));
    return times;
  };
  const pid_t child = ::fork();
  CAIRN_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    run(1);
    ::_exit(0);
  }
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof before, &before);
  std::vector<double> times = run(0);
  ::sched_setaffinity(0, sizeof before, &before);
  ::waitpid(child, nullptr, 0);
  return times;
}

}  // namespace cairn::study
