#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>

#include "comm/net/byte_stream.h"
#include "comm/net/key.h"

namespace cairn::comm {

struct TlsFiles {
  std::filesystem::path authority, certificate, private_key;  // PEM files: the trusted authority, our certificate, its private key
};

// TLS 1.3 with mutual authentication: by a pre-shared key, or by certificates of an authority that both sides trust. With a key no
// certificate is accepted; session keys still come from a fresh key exchange, so the key alone does not decrypt recorded traffic.
class Tls {
 public:
  explicit Tls(const Key& key);
  explicit Tls(const TlsFiles& files);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  enum class Side { client, server };
  struct Context;

 private:
  friend class TlsStream;
  std::unique_ptr<Context> context_;
};

// A byte stream in TLS. It reads and writes once handshake() has returned `done`.
class TlsStream final : public ByteStream {
 public:
  TlsStream(const Tls& tls, Tls::Side side, int fd);
  ~TlsStream() override;

  enum class Handshake { done, wants_read, wants_write };
  // The next step of the handshake. Throws an error of kind bad_input if the other side does not authenticate, lost_peer if it is gone.
  Handshake handshake();
  // On the server's side: the client's hello was accepted. With a pre-shared key the hello proves it, so a caller without the key does not
  // come this far, unless it repeats a hello that it has seen.
  bool hello_accepted() const;

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
