#pragma once
#include <array>
#include <cstdint>

#include "comm/net/transport.h"

namespace cairn::comm {

// Mutual challenge-response authentication of two ranks with the run's key K:
//
//   caller -> called   Hello      {from, to, channel, nonce a}
//   called -> caller   Challenge  {nonce b, HMAC-SHA256(K, 'b' | Hello | b)}
//   caller -> called   proof       HMAC-SHA256(K, 'a' | Hello | b)
//   called -> caller   one byte    the connection is kept
//
// Each side checks the other's code before it goes on. The codes are bound to both nonces, both ranks, channel and direction, so that none
// can be replayed or reflected. A caller without the key learns nothing and is refused after a few bytes of fixed size.

using Bytes32 = Key;  // a nonce or a code has the length of a key

// An agent says hello in the place of a rank that has ended before it could (announce_death). No connection is kept then.
struct Hello {
  static constexpr char kEnded = 'e';
  std::array<char, 8> magic{'c', 'a', 'i', 'r', 'n', '/', '2', 0};  // the last byte is kEnded where the rank has ended
  int32_t from = 0;
  int32_t to = 0;
  uint16_t channel = 0;   // the number of this connection among those of the pair
  uint16_t channels = 1;  // how many there are; both ends must agree
  Bytes32 nonce{};
};

struct Challenge {
  Bytes32 nonce{};
  Bytes32 proof{};
};

Hello make_hello(const NetSetup& setup, int to, int channel = 0, int channels = 1);
Challenge make_challenge(const NetSetup& setup, const Hello& hello);                        // throws if the hello is not for this rank
Bytes32 make_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge);  // throws if the called side lacks the key
void check_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge,
                 const Bytes32& proof);  // throws if the caller lacks the key

}  // namespace cairn::comm
