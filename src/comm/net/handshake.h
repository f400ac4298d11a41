#pragma once
#include <array>
#include <cstdint>

#include "comm/net/transport.h"

namespace cairn::comm {

// How two ranks of a run recognise each other: both send a random number and answer the other's with an HMAC-SHA256 under the run's key,
// bound to both rank numbers and to who called. Whoever does not know the key learns nothing and is refused after a few bytes of fixed
// size. The caller says hello, the called side answers with a challenge, the caller with its proof; each checks before it goes on.

using Bytes32 = Key;  // as long as one

struct Hello {
  std::array<char, 8> magic{'c', 'a', 'i', 'r', 'n', '/', '1', 0};
  int32_t from = 0;
  int32_t to = 0;
  Bytes32 nonce{};
};

struct Challenge {
  Bytes32 nonce{};
  Bytes32 proof{};
};

Hello make_hello(const NetSetup& setup, int to);
Challenge make_challenge(const NetSetup& setup, const Hello& hello);                        // throws where the hello is not for us
Bytes32 make_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge);  // throws where the called side lacks the key
void check_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge,
                 const Bytes32& proof);  // throws where the caller does

}  // namespace cairn::comm
