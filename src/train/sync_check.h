#pragma once

namespace cairn::train {

// While this object lives, an operation that makes the host wait for the GPU throws (log.sync_check). With on = false, or without CUDA, it
// does nothing.
class SyncCheck {
 public:
  explicit SyncCheck(bool on);
  ~SyncCheck();
  SyncCheck(const SyncCheck&) = delete;
  SyncCheck& operator=(const SyncCheck&) = delete;

 private:
  bool on_;
};

}  // namespace cairn::train
