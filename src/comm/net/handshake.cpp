// The three messages of the handshake; handshake.h has the protocol.
#include "comm/net/handshake.h"

#include <cstring>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "base/error.h"

namespace cairn::comm {
namespace {

// The code that proves knowledge of the key (handshake.h).
Bytes32 signature(const NetSetup& setup, char side, const Hello& hello, const Bytes32& answer_nonce) {
  std::array<uint8_t, 1 + sizeof(Hello) + sizeof(Bytes32)> text;
  text[0] = static_cast<uint8_t>(side);
  std::memcpy(text.data() + 1, &hello, sizeof(Hello));
  std::memcpy(text.data() + 1 + sizeof(Hello), answer_nonce.data(), answer_nonce.size());
  return derive(setup.key, {reinterpret_cast<const char*>(text.data()), text.size()});
}

void demand(bool holds, const char* what) {
  if (!holds) throw Error(Error::Kind::lost_peer, fmt::format("refused a connection: {}", what));
}

bool same(const Bytes32& a, const Bytes32& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace

Hello make_hello(const NetSetup& setup, int to, int channel, int channels) {
  Hello hello;
  hello.from = setup.rank;
  hello.to = to;
  hello.channel = static_cast<uint16_t>(channel);
  hello.channels = static_cast<uint16_t>(channels);
  hello.nonce = fresh_key();
  return hello;
}

Challenge make_challenge(const NetSetup& setup, const Hello& hello) {
  std::array<char, 8> magic = hello.magic;
  if (magic.back() == Hello::kEnded) magic.back() = 0;
  demand(magic == Hello().magic, "it does not speak this protocol");
  demand(hello.to == setup.rank && hello.from > setup.rank && hello.from < setup.size, "it names the wrong ranks");
  demand(hello.channel < hello.channels, "it names a channel that there is not");
  Challenge challenge;
  challenge.nonce = fresh_key();
  challenge.proof = signature(setup, 'b', hello, challenge.nonce);
  return challenge;
}

Bytes32 make_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge) {
  demand(same(challenge.proof, signature(setup, 'b', hello, challenge.nonce)), "the called side does not know the key of this run");
  return signature(setup, 'a', hello, challenge.nonce);
}

void check_proof(const NetSetup& setup, const Hello& hello, const Challenge& challenge, const Bytes32& proof) {
  demand(same(proof, signature(setup, 'a', hello, challenge.nonce)), "the caller does not know the key of this run");
}

}  // namespace cairn::comm
