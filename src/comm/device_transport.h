#pragma once
#include <memory>

#include "comm/device_group.h"
#include "comm/transport.h"

namespace cairn::comm {

// A transport that does all that `host` does and lets devices talk among themselves, as the groups of `make` do. Whoever waits looks after
// the devices too: now and then, since nothing wakes it.
std::unique_ptr<Transport> make_device_transport(std::unique_ptr<Transport> host, DeviceGroupMaker make);

}  // namespace cairn::comm
