#pragma once

namespace cairn::train {

// While it lives, an operation that makes the host wait for the GPU throws instead. Off, or without CUDA, it does nothing.
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
