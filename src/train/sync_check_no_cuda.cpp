#include "train/sync_check.h"

namespace cairn::train {

SyncCheck::SyncCheck(bool on) : on_(on) {}
SyncCheck::~SyncCheck() = default;

}  // namespace cairn::train
