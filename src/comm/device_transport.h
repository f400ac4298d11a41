#pragma once
#include <memory>

#include "comm/device_group.h"
#include "comm/transport.h"

namespace cairn::comm {

// Wraps `host` and adds device-to-device communication by the groups that `make` makes. A waiting rank polls the devices at short
// intervals, because a device wakes nobody.
std::unique_ptr<Transport> make_device_transport(std::unique_ptr<Transport> host, DeviceGroupMaker make);

}  // namespace cairn::comm
