// Device operations: the call goes to the device group, its bytes are booked, and a roll call on the host checks that all ranks take part.
#include <utility>

#include "base/check.h"
#include "comm/collectives/ring_traffic.h"
#include "comm/collectives/roll_call.h"
#include "comm/operation.h"

namespace cairn::comm {

void* Operation::current_stream() const {
  return (arguments.out.stream ? arguments.out.stream : arguments.in.stream)(group->device_group()->device());
}

DeviceGroup* Group::State::device_group() {
  if (!devices) devices = transport.device_group(ranks, id);
  return devices->get();
}

void Group::State::hand_over(Operation& operation, bool sends) {
  CAIRN_CHECK(device_group(), "{}: this world's transport knows no devices", operation.describe());
  transport.poll();  // completes earlier operations even if nobody waits on the host
  DeviceCall call;
  call.kind = operation.signature.kind, call.sends = sends, call.arguments = operation.arguments;
  call.name = operation.describe();
  call.after = operation.current_stream(), call.deadline = operation.deadline;
  operation.job = device_group()->start(std::move(call));
  for (const Flow& flow : ring_traffic(operation.signature.kind, operation.arguments, me, static_cast<int>(ranks.size()), sends)) {
    transport.ledger().book({transport.rank(), ranks[flow.to], flow.bytes, operation.purpose, operation.begun, operation.begun});
  }
  const bool collective = operation.signature.kind != OperationKind::send_recv;
  operation.task = (collective ? roll_call : sends ? roll_call_sender : roll_call_receiver)(operation.exchange, operation.arguments);
}

}  // namespace cairn::comm
