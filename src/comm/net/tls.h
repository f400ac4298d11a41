#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>

#include "comm/net/byte_stream.h"
#include "comm/net/key.h"

namespace cairn::comm {

struct TlsFiles {
  std::filesystem::path authority, certificate, private_key;  // PEM: who is believed, who we are, how we show it
};

// TLS 1.3 where both sides show who they are: by a secret that both know, or by certificates that an authority signed which both believe.
// With a secret nobody else's certificate is accepted, and the session's keys are fresh: who learns the secret later reads nothing.
class Tls {
 public:
  explicit Tls(const Key& key);
  explicit Tls(const TlsFiles& files);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  enum class Side { calls, is_called };
  struct Context;

 private:
  friend class TlsStream;
  std::unique_ptr<Context> context_;
};

// A wire in TLS. After shake_hands has said `done` it reads and writes.
class TlsStream final : public ByteStream {
 public:
  TlsStream(const Tls& tls, Tls::Side side, int fd);
  ~TlsStream() override;

  enum class Shake { done, wants_read, wants_write };
  // The next move of the handshake. Throws where the other side is none that should be here.
  Shake shake_hands();

  int64_t read(void* into, int64_t bytes) override;
  int64_t write(std::span<const std::byte> first, std::span<const std::byte> second) override;
  bool must_repeat() const override;
  bool has_buffered() const override;
  void end_writing() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::comm
