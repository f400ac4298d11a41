#pragma once
#include <filesystem>
#include <future>
#include <mutex>

namespace cairn::snapshot {

// Deletes folders on a thread, one after the other: a file system may take as long to give room back as to write. What is not deleted when
// the process dies has a name that the next save clears away.
class Remover {
 public:
  Remover() = default;
  ~Remover() { wait(); }
  Remover(const Remover&) = delete;
  Remover& operator=(const Remover&) = delete;

  void take(std::filesystem::path folder);
  void wait();  // until all that was taken is gone

 private:
  std::mutex mutex_;
  std::future<void> removing_;
};

}  // namespace cairn::snapshot
