#include "train/sync_check.h"

#include <c10/cuda/CUDAFunctions.h>

namespace cairn::train {

SyncCheck::SyncCheck(bool on) : on_(on) {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
}

SyncCheck::~SyncCheck() {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

}  // namespace cairn::train
