// TLS 1.3 by OpenSSL over a non-blocking socket: one cipher suite, mutual authentication, no tickets, no resumption.
// With a pre-shared key both sides present it as an external PSK; a fresh (EC)DHE exchange still makes the session keys, which gives
// forward secrecy. Traffic keys are updated every 64 GiB.
#include "comm/net/tls.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/stat.h>
#include <vector>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteNumber{0x13, 0x01};
constexpr std::string_view kName = "cairn";  // the identity of the pre-shared key
constexpr int64_t kRecordBytes = 16 << 10;   // size of a TLS record
constexpr size_t kShakingBytes = 2 << 10;    // during the handshake, with an unknown peer
constexpr size_t kReadAhead = 64 << 10;      // read from the socket at once, after the handshake
// AES-GCM must not encrypt more than about 2^24 records with one key; the key is updated long before that.
constexpr int64_t kBytesPerKey = int64_t{64} << 30;

const unsigned char* text_of(std::string_view name) { return reinterpret_cast<const unsigned char*>(name.data()); }

[[noreturn]] void gone(const std::string& how) { throw Error(Error::Kind::lost_peer, how); }
[[noreturn]] void refused(const std::string& why) { throw Error(Error::Kind::bad_input, why); }

// OpenSSL's text for the last error.
std::string reason() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text ? text : "no reason given";
}

// OpenSSL's access to the socket. Its own BIO would raise SIGPIPE when the peer has gone.
int bio_write(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const auto sent = ::send(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), data, static_cast<size_t>(bytes),
                           MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* into, int bytes) {
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), into, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* socket_bio(int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cairn socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* bio = BIO_new(method);
  CAIRN_CHECK(bio != nullptr, "OpenSSL: no memory");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

// An external pre-shared key in TLS 1.3: both sides present a session with this key as if they had negotiated it earlier.
SSL_SESSION* session_of(SSL* ssl, const Key& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* suite = SSL_CIPHER_find(ssl, kSuiteNumber.data());
  const bool made = session && suite && SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
                    SSL_SESSION_set_cipher(session, suite) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
                    SSL_SESSION_set1_id_context(session, text_of(kName), kName.size()) == 1;
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace

struct Tls::Context {
  SSL_CTX* ctx = nullptr;
  Key key{};
  bool by_key = false;

  Context() : ctx(SSL_CTX_new(TLS_method())) {
    CAIRN_CHECK(ctx != nullptr, "OpenSSL: {}", reason());
    const bool set = SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1 && SSL_CTX_set_ciphersuites(ctx, kSuite) == 1 &&
                     SSL_CTX_set1_groups_list(ctx, "X25519:P-256") == 1 && SSL_CTX_set_num_tickets(ctx, 0) == 1 &&
                     SSL_CTX_set_session_id_context(ctx, text_of(kName), kName.size()) == 1;
    CAIRN_CHECK(set, "OpenSSL: {}", reason());
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_max_send_fragment(ctx, kShakingBytes);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(ctx, 16 << 10);  // bounds what an unknown peer can make us keep
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_app_data(ctx, this);
  }
  ~Context() {
    SSL_CTX_free(ctx);
    OPENSSL_cleanse(key.data(), key.size());
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static const Context& of(const SSL* ssl) { return *static_cast<const Context*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))); }

  static int caller_offers(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_length, SSL_SESSION** session) {
    *id = text_of(kName);
    *id_length = kName.size();
    *session = session_of(ssl, of(ssl).key);
    return *session ? 1 : 0;
  }

  static int called_finds(SSL* ssl, const unsigned char* id, size_t id_length, SSL_SESSION** session) {
    *session = nullptr;
    if (std::string_view(reinterpret_cast<const char*>(id), id_length) != kName) return 1;  // not our key: continue without one, and fail
    *session = session_of(ssl, of(ssl).key);
    return *session ? 1 : 0;
  }
};

Tls::Tls(const Key& key) : context_(std::make_unique<Context>()) {
  context_->key = derive(key, "tls");
  context_->by_key = true;
  SSL_CTX_set_psk_use_session_callback(context_->ctx, Context::caller_offers);
  SSL_CTX_set_psk_find_session_callback(context_->ctx, Context::called_finds);
}

Tls::Tls(const TlsFiles& files) : context_(std::make_unique<Context>()) {
  const auto use = [](bool done, const std::filesystem::path& file, const char* as) {
    if (!done) base::fail_input("{}: cannot be used as {}: {}", file.string(), as, reason());
  };
  for (const auto& file : {files.authority, files.certificate, files.private_key}) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))  // OpenSSL would block on a pipe
      base::fail_input("{}: not a regular file: a certificate or key is a PEM file", file.string());
  }
  struct stat facts {};
  if (::stat(files.private_key.c_str(), &facts) == 0 && (facts.st_mode & 077) != 0)
    base::fail_input("--tls-key {}: others can read this private key. Run `chmod 600 {}`.", files.private_key.string(),
                     files.private_key.string());
  SSL_CTX* ctx = context_->ctx;
  use(SSL_CTX_load_verify_locations(ctx, files.authority.c_str(), nullptr) == 1, files.authority, "certificate authority");
  use(SSL_CTX_use_certificate_chain_file(ctx, files.certificate.c_str()) == 1, files.certificate, "certificate");
  use(SSL_CTX_use_PrivateKey_file(ctx, files.private_key.c_str(), SSL_FILETYPE_PEM) == 1, files.private_key, "private key");
  use(SSL_CTX_check_private_key(ctx) == 1, files.private_key, "private key of that certificate");
}

Tls::~Tls() = default;

struct TlsStream::State {
  SSL* ssl = nullptr;
  int fd = -1;
  bool by_key = false;
  int64_t written_under_key = 0;
  bool waiting = false;           // the last write did not complete
  std::vector<std::byte> joined;  // header and payload in one record

  // The meaning of a failed call: -1 where it must be repeated, else throws.
  int64_t not_done(int result) {
    const int saved = errno;
    switch (SSL_get_error(ssl, result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return -1;
      case SSL_ERROR_ZERO_RETURN:
        gone(kConnectionClosed);
      case SSL_ERROR_SYSCALL:
        gone(saved == 0 || saved == EPIPE || saved == ECONNRESET ? kConnectionClosed : std::strerror(saved));
      default:
        gone("its connection was closed: " + reason());
    }
  }

  int64_t write(const std::byte* data, int64_t bytes) {
    if (written_under_key > kBytesPerKey && !waiting) {
      written_under_key = 0;
      if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) gone("no new key for its connection: " + reason());
    }
    ERR_clear_error();
    const int sent = SSL_write(ssl, data, static_cast<int>(std::min<int64_t>(bytes, 1 << 30)));
    waiting = sent <= 0;
    if (waiting) return not_done(sent);
    written_under_key += sent;
    return sent;
  }
};

TlsStream::TlsStream(const Tls& tls, Tls::Side side, int fd) : state_(std::make_unique<State>()) {
  state_->ssl = SSL_new(tls.context_->ctx);
  state_->fd = fd;
  state_->by_key = tls.context_->by_key;
  CAIRN_CHECK(state_->ssl != nullptr, "OpenSSL: {}", reason());
  BIO* bio = socket_bio(fd);
  SSL_set_bio(state_->ssl, bio, bio);  // frees it
  side == Tls::Side::client ? SSL_set_connect_state(state_->ssl) : SSL_set_accept_state(state_->ssl);
}

TlsStream::~TlsStream() { SSL_free(state_->ssl); }

TlsStream::Handshake TlsStream::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(state_->ssl);
  if (result == 1) {
    if (state_->by_key && SSL_session_reused(state_->ssl) != 1) refused("it does not have the key of this run");
    SSL_set_max_send_fragment(state_->ssl, kRecordBytes);
    SSL_set_read_ahead(state_->ssl, 1);
    SSL_set_default_read_buffer_len(state_->ssl, kReadAhead);
    return Handshake::done;
  }
  const int saved = errno;
  switch (SSL_get_error(state_->ssl, result)) {
    case SSL_ERROR_WANT_READ:
      return Handshake::wants_read;
    case SSL_ERROR_WANT_WRITE:
      return Handshake::wants_write;
    case SSL_ERROR_SYSCALL:
      gone(saved == 0 || saved == ECONNRESET || saved == EPIPE ? kConnectionClosed : std::strerror(saved));
    case SSL_ERROR_ZERO_RETURN:
      gone(kConnectionClosed);
    default:
      refused(reason());
  }
}

bool TlsStream::hello_accepted() const {
  const OSSL_HANDSHAKE_STATE state = SSL_get_state(state_->ssl);
  return state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO;
}

int64_t TlsStream::read(void* into, int64_t bytes) {
  ERR_clear_error();
  const int got = SSL_read(state_->ssl, into, static_cast<int>(std::min<int64_t>(bytes, 1 << 30)));
  return got > 0 ? got : state_->not_done(got);
}

int64_t TlsStream::write(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (first.empty()) return state_->write(second.data(), static_cast<int64_t>(second.size()));
  // The header and the beginning of the payload go into one record. A write that has to wait is repeated with the same bytes.
  const auto head = static_cast<int64_t>(first.size());
  const int64_t tail = std::min(static_cast<int64_t>(second.size()), std::max<int64_t>(kRecordBytes - head, 0));
  if (tail == 0) return state_->write(first.data(), head);
  state_->joined.resize(static_cast<size_t>(head + tail));
  std::memcpy(state_->joined.data(), first.data(), static_cast<size_t>(head));
  std::memcpy(state_->joined.data() + head, second.data(), static_cast<size_t>(tail));
  return state_->write(state_->joined.data(), head + tail);
}

bool TlsStream::must_repeat() const { return state_->waiting; }

bool TlsStream::has_buffered() const { return SSL_has_pending(state_->ssl) == 1; }

void TlsStream::end_writing() {
  ERR_clear_error();
  SSL_shutdown(state_->ssl);  // an authenticated end of stream
  ERR_clear_error();
  ::shutdown(state_->fd, SHUT_WR);
}

}  // namespace cairn::comm
