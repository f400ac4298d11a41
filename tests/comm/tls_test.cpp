// TLS between two ends of a socket pair: who gets through, who does not, and that bytes arrive whatever the sizes.
#include "comm/net/tls.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "harness/scratch_folder.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;

Key key_of(uint8_t first) {
  Key key{};
  key[0] = first;
  return key;
}

// Two ends that never block, and what became of each end's handshake: empty, or why not.
struct Pair {
  Pair(const Tls& caller, const Tls& called) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    ends[0].emplace(caller, Tls::Side::client, fds[0]);
    ends[1].emplace(called, Tls::Side::server, fds[1]);
  }
  ~Pair() {
    for (const int fd : fds) ::close(fd);
  }

  // Lets both sides move until neither can.
  std::array<std::string, 2> handshake() {
    std::array<std::string, 2> why;
    std::array<bool, 2> over{};
    for (int round = 0; round < 20; ++round) {
      for (int end = 0; end < 2; ++end) {
        if (over[end]) continue;
        try {
          over[end] = ends[end]->handshake() == TlsStream::Handshake::done;
        } catch (const Error& error) {
          why[end] = error.what();
          over[end] = true;
          ::shutdown(fds[end], SHUT_RDWR);
        }
      }
    }
    for (int end = 0; end < 2; ++end) {
      if (!over[end]) why[end] = "waits";
    }
    return why;
  }

  std::array<int, 2> fds{};
  std::array<std::optional<TlsStream>, 2> ends;
};

TEST(Tls, TwoThatHaveTheSameKeyGetThrough) {
  const Tls one(key_of(1)), other(key_of(1));
  Pair pair(one, other);
  EXPECT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
}

TEST(Tls, AnotherKeyIsRefusedOnBothSides) {
  const Tls one(key_of(1)), other(key_of(2));
  Pair pair(one, other);
  const auto why = pair.handshake();
  EXPECT_THAT(why[0], testing::Not(testing::AnyOf("", "waits")));
  EXPECT_THAT(why[1], testing::Not(testing::AnyOf("", "waits")));
}

TEST(Tls, WhatIsWrittenArrivesWhateverItsSizeAndHoweverItIsCut) {
  const Tls tls(key_of(1));
  Pair pair(tls, tls);
  ASSERT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
  for (const size_t bytes : {1ul, 2ul, 111ul, 16383ul, 16384ul, 16385ul, 300'001ul, 5'000'011ul}) {
    std::vector<std::byte> out(bytes), in(bytes);
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + bytes);
    const size_t head = std::min<size_t>(bytes, 112);
    size_t sent = 0, got = 0;
    while (got < bytes) {
      const std::span whole(out);
      const auto first = sent < head ? whole.subspan(sent, head - sent) : std::span<std::byte>();
      const int64_t written = sent < bytes ? pair.ends[0]->write(first, whole.subspan(std::max(sent, head))) : -1;
      if (written > 0) sent += static_cast<size_t>(written);
      const int64_t read = pair.ends[1]->read(in.data() + got, static_cast<int64_t>(std::min<size_t>(bytes - got, 70'001)));
      if (read > 0) got += static_cast<size_t>(read);
      ASSERT_TRUE(written > 0 || read > 0 || pair.ends[0]->must_repeat()) << sent << " sent, " << got << " of " << bytes << " there";
    }
    EXPECT_EQ(in, out);
    EXPECT_FALSE(pair.ends[1]->has_buffered());
  }
}

TEST(Tls, OnTheConnectionNothingCanBeRead) {
  const Tls tls(key_of(1));
  Pair pair(tls, tls);
  ASSERT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
  const std::string secret(2000, 's');
  ASSERT_EQ(pair.ends[0]->write(std::as_bytes(std::span(secret)), {}), 2000);
  std::string seen(4000, 0);
  const ssize_t length = ::recv(pair.fds[1], seen.data(), seen.size(), 0);
  ASSERT_GT(length, 2000);
  EXPECT_EQ(seen.find("ssssss"), std::string::npos);
}

TEST(Tls, ADamagedByteEndsTheConnection) {
  const Tls tls(key_of(1));
  Pair pair(tls, tls);
  ASSERT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
  const std::string text(100, 't');
  ASSERT_EQ(pair.ends[0]->write(std::as_bytes(std::span(text)), {}), 100);
  std::string record(4000, 0);
  const ssize_t length = ::recv(pair.fds[1], record.data(), record.size(), 0);
  record[static_cast<size_t>(length) / 2] ^= 4;
  ASSERT_EQ(::send(pair.fds[0], record.data(), static_cast<size_t>(length), 0), length);
  std::array<std::byte, 100> into{};
  EXPECT_THROW(pair.ends[1]->read(into.data(), 100), Error);
}

TEST(Tls, TheEndOfWritingIsTold) {
  const Tls tls(key_of(1));
  Pair pair(tls, tls);
  ASSERT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
  pair.ends[0]->end_writing();
  std::byte byte{};
  try {
    pair.ends[1]->read(&byte, 1);
    ADD_FAILURE() << "read something";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), kConnectionClosed);
  }
  EXPECT_EQ(pair.ends[1]->write(std::as_bytes(std::span(&byte, 1)), {}), 1);  // the other way is open
  EXPECT_EQ(pair.ends[0]->read(&byte, 1), 1);
}

// A certificate authority, or a certificate that it signed, as files.
class Certified {
 public:
  Certified(const harness::ScratchFolder& folder, const std::string& name, const Certified* by)
      : certificate(folder / (name + ".pem")), private_key(folder / (name + ".key")), pair_(EVP_EC_gen("P-256")), x509_(X509_new()) {
    ASN1_INTEGER_set(X509_get_serialNumber(x509_), by ? 2 : 1);
    X509_set_version(x509_, 2);
    X509_gmtime_adj(X509_getm_notBefore(x509_), -60);
    X509_gmtime_adj(X509_getm_notAfter(x509_), 3600);
    X509_set_pubkey(x509_, pair_);
    const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x509_), "CN", MBSTRING_ASC, text, -1, -1, 0);
    X509_set_issuer_name(x509_, X509_get_subject_name(by ? by->x509_ : x509_));
    if (!by) {
      X509_EXTENSION* is_authority = X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
      X509_add_ext(x509_, is_authority, -1);
      X509_EXTENSION_free(is_authority);
    }
    X509_sign(x509_, by ? by->pair_ : pair_, EVP_sha256());
    FILE* file = std::fopen(certificate.c_str(), "w");
    PEM_write_X509(file, x509_);
    std::fclose(file);
    file = std::fopen(private_key.c_str(), "w");
    PEM_write_PrivateKey(file, pair_, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
    ::chmod(private_key.c_str(), 0600);
  }
  ~Certified() {
    X509_free(x509_);
    EVP_PKEY_free(pair_);
  }

  std::filesystem::path certificate, private_key;

 private:
  EVP_PKEY* pair_;
  X509* x509_;
};

TEST(Tls, CertificatesOfOneAuthorityGetThroughAndOthersDoNot) {
  const harness::ScratchFolder folder;
  const Certified ours(folder, "ours", nullptr), theirs(folder, "theirs", nullptr);
  const Certified one(folder, "one", &ours), two(folder, "two", &ours), outsider(folder, "outsider", &theirs);
  const Tls first(TlsFiles{ours.certificate, one.certificate, one.private_key});
  const Tls second(TlsFiles{ours.certificate, two.certificate, two.private_key});
  const Tls third(TlsFiles{ours.certificate, outsider.certificate,
                           outsider.private_key});  // trusts our authority, but has a certificate of another one
  const Tls keyed(key_of(1));
  {
    Pair pair(first, second);
    EXPECT_EQ(pair.handshake(), (std::array<std::string, 2>{}));
  }
  {
    Pair pair(third, second);
    EXPECT_THAT(pair.handshake()[1], HasSubstr("certificate verify failed"));
  }
  {
    Pair pair(first, third);
    EXPECT_THAT(pair.handshake()[0], HasSubstr("certificate verify failed"));
  }
  {
    Pair pair(keyed, second);
    EXPECT_NE(pair.handshake()[1], "");
  }
  {
    Pair pair(first, keyed);
    EXPECT_NE(pair.handshake()[1], "");
  }
}

TEST(Tls, FilesThatCannotBeUsedAreNamed) {
  const harness::ScratchFolder folder;
  const Certified ours(folder, "ours", nullptr), other(folder, "other", nullptr);
  try {
    Tls tls(TlsFiles{ours.certificate, ours.certificate, other.private_key});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("other.key"));
  }
  EXPECT_THROW(Tls(TlsFiles{folder / "none.pem", ours.certificate, ours.private_key}), Error);
}

TEST(Tls, APrivateKeyThatOthersCanReadIsRefused) {
  const harness::ScratchFolder folder;
  const Certified ours(folder, "ours", nullptr);
  for (const mode_t mode : {0640, 0604, 0660, 0644}) {
    ASSERT_EQ(::chmod(ours.private_key.c_str(), mode), 0);
    try {
      Tls tls(TlsFiles{ours.certificate, ours.certificate, ours.private_key});
      ADD_FAILURE() << "accepted with mode " << mode;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_THAT(error.what(), HasSubstr("chmod 600 " + ours.private_key.string()));
    }
  }
  ASSERT_EQ(::chmod(ours.private_key.c_str(), 0400), 0);
  EXPECT_NO_THROW(Tls(TlsFiles{ours.certificate, ours.certificate, ours.private_key}));
}

TEST(Key, IsReadBackFromItsFileWhichOthersMayNotRead) {
  const harness::ScratchFolder folder;
  const Key key = fresh_key();
  EXPECT_NE(key, fresh_key());
  write_key(folder / "run.key", key);
  EXPECT_EQ(read_key(folder / "run.key"), key);
  const auto refusal = [&](const std::string& name) -> std::string {
    try {
      read_key(folder / name);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  try {
    write_key(folder / "run.key", fresh_key());
    ADD_FAILURE() << "written over";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("never overwritten"));
  }
  EXPECT_EQ(read_key(folder / "run.key"), key);
  ASSERT_EQ(::chmod((folder / "run.key").c_str(), 0640), 0);
  EXPECT_THAT(refusal("run.key"), HasSubstr("chmod 600"));
  EXPECT_THAT(refusal("none.key"), HasSubstr("cairn key"));
  std::ofstream(folder / "bad.key") << std::string(63, 'a') << "g\n";
  ASSERT_EQ(::chmod((folder / "bad.key").c_str(), 0600), 0);
  EXPECT_THAT(refusal("bad.key"), HasSubstr("64 hexadecimal digits"));
}

TEST(Key, UsesAreIndependent) {
  EXPECT_NE(derive(key_of(1), "a"), derive(key_of(1), "b"));
  EXPECT_NE(derive(key_of(1), "a"), derive(key_of(2), "a"));
  EXPECT_NE(derive(key_of(1), "a"), key_of(1));
}

}  // namespace
}  // namespace cairn::comm
