// Empty messages that say "I am in this operation"; roll_call.h says what for.
#include "comm/collectives/roll_call.h"

#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

constexpr uint32_t kRollCall = ~uint32_t{0};  // a step number that host collectives never use

}  // namespace

Coroutine roll_call(Exchange& exchange, const Arguments&) {
  const int n = exchange.size();
  std::vector<Completion> moves;
  if (n <= kRollCallOfAll) {
    for (const int peer : peers_in_turn(exchange)) {
      moves.push_back(exchange.recv(peer, kRollCall, nullptr, 0));
      moves.push_back(exchange.send(peer, kRollCall, nullptr, 0));
    }
  } else {
    moves.push_back(exchange.recv((exchange.rank() + n - 1) % n, kRollCall, nullptr, 0));
    moves.push_back(exchange.send((exchange.rank() + 1) % n, kRollCall, nullptr, 0));
  }
  for (Completion& moved : moves) co_await moved;
}

Coroutine roll_call_sender(Exchange& exchange, const Arguments& arguments) {
  Completion told = exchange.send(arguments.root, kRollCall, nullptr, 0);
  co_await told;
}

Coroutine roll_call_receiver(Exchange& exchange, const Arguments& arguments) {
  Completion heard = exchange.recv(arguments.root, kRollCall, nullptr, 0);
  co_await heard;
}

}  // namespace cairn::comm
