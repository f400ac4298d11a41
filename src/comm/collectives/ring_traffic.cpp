#include "comm/collectives/ring_traffic.h"

namespace cairn::comm {

std::vector<Flow> ring_traffic(OperationKind kind, const Arguments& arguments, int me, int n, bool sends) {
  if (n == 1) return {};
  const int next = (me + 1) % n;
  const int64_t size = size_of(arguments.out.stream ? arguments.out.dtype : arguments.in.dtype);
  const auto to_each = [&](const std::vector<int64_t>& counts) {
    std::vector<Flow> flows;
    for (int peer = 0; peer < n; ++peer) {
      if (peer != me && counts[peer] > 0) flows.push_back({peer, counts[peer] * size});
    }
    return flows;
  };
  switch (kind) {
    case OperationKind::all_reduce:
      return {{next, 2 * arguments.out.count * size * (n - 1) / n}};
    case OperationKind::reduce:
      return me == arguments.root ? std::vector<Flow>{} : std::vector<Flow>{{next, arguments.out.count * size}};
    case OperationKind::broadcast:
      return next == arguments.root ? std::vector<Flow>{} : std::vector<Flow>{{next, arguments.out.count * size}};
    case OperationKind::all_gather:
      return {{next, (arguments.out.count - arguments.counts[next]) * size}};
    case OperationKind::reduce_scatter:
      return {{next, (arguments.in.count - arguments.counts[me]) * size}};
    case OperationKind::gather:
      return me == arguments.root ? std::vector<Flow>{} : std::vector<Flow>{{arguments.root, arguments.in.count * size}};
    case OperationKind::scatter:
      return me == arguments.root ? to_each(arguments.counts) : std::vector<Flow>{};
    case OperationKind::all_to_all:
      return to_each(arguments.in_counts);
    case OperationKind::send_recv:
      return sends ? std::vector<Flow>{{arguments.root, arguments.out.count * size}} : std::vector<Flow>{};
    case OperationKind::coded_all_reduce:
    case OperationKind::all_scan:
    case OperationKind::barrier:
      break;  // the host's
  }
  return {};
}

}  // namespace cairn::comm
