#include "comm/net_handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cstring>

#include "base/check.h"

namespace cairn::comm {
namespace {

using Bytes32 = std::array<uint8_t, 32>;

struct Hello {
  char magic[8] = {'c', 'a', 'i', 'r', 'n', '/', '1', 0};
  int32_t from = 0;
  int32_t to = 0;
  Bytes32 nonce{};
};
struct Challenge {
  Bytes32 nonce{};
  Bytes32 proof{};
};

Bytes32 fresh() {
  Bytes32 bytes;
  CAIRN_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "no random numbers from the system");
  return bytes;
}

// What shows that one knows the key: bound to the side that says it, to both nonces and both ranks, so that no answer serves twice.
Bytes32 proof(const NetSetup& setup, char side, const Hello& hello, const Bytes32& answer_nonce) {
  std::array<uint8_t, 1 + sizeof(Hello) + 32> text;
  text[0] = static_cast<uint8_t>(side);
  std::memcpy(text.data() + 1, &hello, sizeof(Hello));
  std::memcpy(text.data() + 1 + sizeof(Hello), answer_nonce.data(), 32);
  Bytes32 out;
  unsigned length = 0;
  const auto* done = HMAC(EVP_sha256(), setup.key.data(), static_cast<int>(setup.key.size()), text.data(), text.size(), out.data(), &length);
  CAIRN_CHECK(done != nullptr && length == out.size(), "HMAC-SHA256 gave {} bytes", length);
  return out;
}

void demand(bool holds, const char* what) {
  if (!holds) throw Error(Error::Kind::lost_peer, fmt::format("refused a connection: {}", what));
}

bool same(const Bytes32& a, const Bytes32& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace

asio::awaitable<void> introduce(asio::ip::tcp::socket& socket, const NetSetup& setup, int to) {
  Hello hello;
  hello.from = setup.rank;
  hello.to = to;
  hello.nonce = fresh();
  Challenge challenge;
  co_await asio::async_write(socket, asio::buffer(&hello, sizeof hello), asio::use_awaitable);
  co_await asio::async_read(socket, asio::buffer(&challenge, sizeof challenge), asio::use_awaitable);
  demand(same(challenge.proof, proof(setup, 'b', hello, challenge.nonce)), "the called side does not know the key of this run");
  const Bytes32 answer = proof(setup, 'a', hello, challenge.nonce);
  co_await asio::async_write(socket, asio::buffer(answer), asio::use_awaitable);
}

asio::awaitable<int> recognise(asio::ip::tcp::socket& socket, const NetSetup& setup) {
  Hello hello;
  co_await asio::async_read(socket, asio::buffer(&hello, sizeof hello), asio::use_awaitable);
  demand(std::memcmp(hello.magic, Hello().magic, sizeof hello.magic) == 0, "it does not speak this protocol");
  demand(hello.to == setup.rank && hello.from > setup.rank && hello.from < setup.size, "it names the wrong ranks");
  Challenge challenge;
  challenge.nonce = fresh();
  challenge.proof = proof(setup, 'b', hello, challenge.nonce);
  co_await asio::async_write(socket, asio::buffer(&challenge, sizeof challenge), asio::use_awaitable);
  Bytes32 answer;
  co_await asio::async_read(socket, asio::buffer(answer), asio::use_awaitable);
  demand(same(answer, proof(setup, 'a', hello, challenge.nonce)), "the caller does not know the key of this run");
  co_return hello.from;
}

}  // namespace cairn::comm
