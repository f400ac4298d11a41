#include <arpa/inet.h>
#include <cstring>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/stop.h"
#include "comm/net/frame.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::data, "w"};

int connect_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// Two ranks in threads, made by hand; each runs the body with its own set-up.
void two_ranks(std::vector<NetSetup> setups, NetOptions options, const std::function<void(World&)>& body) {
  std::vector<std::jthread> threads;
  for (const NetSetup& setup : setups) {
    threads.emplace_back([&body, setup, options] {
      World world(make_net_transport(setup, options), {.deadline = 10s});
      body(world);
    });
  }
}

void sum_of_two(World& world) {
  float x = 1;
  world.everyone().all_reduce({&x, 1, Dtype::f32}, Reduce::sum, kW).wait();
  EXPECT_EQ(x, 2.0f);
}

TEST(Net, BothSidesMaySendMuchAtOnce) {
  constexpr int64_t kCount = 25'000'000;  // 100 MB each way
  on_ranks(2, {.on = On::net, .deadline = 60s}, [](World& world) {
    std::vector<float> out(kCount, static_cast<float>(world.rank() + 1)), in(kCount);
    const Work sent = world.everyone().send({out.data(), kCount, Dtype::f32}, 1 - world.rank(), kW);
    const Work received = world.everyone().recv({in.data(), kCount, Dtype::f32}, 1 - world.rank(), kW);
    sent.wait();
    received.wait();
    EXPECT_EQ(in.front(), static_cast<float>(2 - world.rank()));
    EXPECT_EQ(in.back(), static_cast<float>(2 - world.rank()));
  });
}

// Around the number of bytes that a connection reads before others get their turn (8 MiB), with nothing behind it to wake anybody.
TEST(Net, NothingIsLeftLyingWhereReadingPauses) {
  on_ranks(2, {.on = On::net, .deadline = 20s}, [](World& world) {
    for (const int64_t bytes : {(8 << 20) - 112, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 16 << 20}) {
      std::vector<uint8_t> x(static_cast<size_t>(bytes), 7), y(static_cast<size_t>(bytes));
      Group& all = world.everyone();
      const Work received = all.recv({y.data(), bytes, Dtype::u8}, 1 - world.rank(), kW);
      all.send({x.data(), bytes, Dtype::u8}, 1 - world.rank(), kW).wait();
      received.wait();
      EXPECT_EQ(y.back(), 7);
    }
  });
}

TEST(Net, MessagesThatNobodyAskedForYetWaitWithinTheirBound) {
  auto setups = make_net_setups(2);
  constexpr int kMany = 40;
  constexpr int64_t kCount = 25'000;  // 100 kB; the bound holds ten
  two_ranks(setups, {.early_bytes_max = 1'000'000}, [](World& world) {
    Group& all = world.everyone();
    std::vector<std::vector<float>> x(kMany, std::vector<float>(kCount));
    std::vector<Work> works;
    if (world.rank() == 0) {
      for (int k = 0; k < kMany; ++k) {
        std::fill(x[k].begin(), x[k].end(), static_cast<float>(k));
        works.push_back(all.send({x[k].data(), kCount, Dtype::f32}, 1, kW));
      }
      Work::all(works).wait();
      float big = 0;
      all.recv({&big, 1, Dtype::f32}, 1, kW).wait();
    } else {
      for (int k = 0; k < 1000; ++k) all.progress();  // lets them come early
      for (int k = 0; k < kMany; ++k) {
        all.recv({x[k].data(), kCount, Dtype::f32}, 0, kW).wait();
        ASSERT_EQ(x[k][kCount - 1], static_cast<float>(k));
      }
      float done = 1;
      all.send({&done, 1, Dtype::f32}, 0, kW).wait();
    }
  });
}

// What was read of it is given back when the transport goes (the address sanitizer watches). The link is slow: it takes 0.4 s.
TEST(Net, ARankMayFailInTheMiddleOfAMessageThatNobodyAskedFor) {
  NetOptions options;
  options.links = LinkModel{.latency = 1us, .bytes_per_s = 10e6, .jitter = 0};
  two_ranks(make_net_setups(2), options, [](World& world) {
    Group& all = world.everyone();
    float small = 1;
    if (world.rank() == 0) {
      std::vector<float> large(1'000'000);
      all.send({&small, 1, Dtype::f32}, 1, kW).wait();
      const Work unasked = all.send({large.data(), static_cast<int64_t>(large.size()), Dtype::f32}, 1, kW);
      EXPECT_THROW(unasked.wait(), Error);
    } else {
      all.recv({&small, 1, Dtype::f32}, 0, kW).wait();
      const auto begun = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begun < 50ms) all.progress();  // an eighth of the large one
      world.fail(Error(Error::Kind::cancelled, "enough"));
    }
  });
}

TEST(Net, ACallerWithAnotherKeyIsRefusedAndHarmsNobody) {
  auto setups = make_net_setups(2);
  const auto rank = [&](int number) {
    World world(make_net_transport(setups[number]), {.deadline = 10s});
    sum_of_two(world);
  };
  std::jthread first(rank, 0);
  const int silent = connect_to(setups[0].addresses[0].port);  // says nothing
  const int loud = connect_to(setups[0].addresses[0].port);    // says something else
  const std::string noise(4096, 'G');
  EXPECT_GT(::send(loud, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
  NetSetup wrong = setups[1];
  wrong.key[0] ^= 1;
  wrong.listener_fd = wrong.segment_fd = -1;  // those of the true rank 1
  try {
    make_net_transport(wrong);
    ADD_FAILURE() << "a caller with another key was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("does not know the key"));
  }
  rank(1);
  first.join();
  char byte = 0;
  EXPECT_LE(::recv(loud, &byte, 1, 0), 0);
  EXPECT_LE(::recv(silent, &byte, 1, 0), 0);
  ::close(silent);
  ::close(loud);
}

TEST(Net, ACallerThatKnowsNoKeyLearnsNothingFromReplayedBytes) {
  // Reflection: the caller sends back our own proof as its answer.
  auto setups = make_net_setups(2);
  const auto rank = [&](int number) {
    World world(make_net_transport(setups[number]), {.deadline = 10s});
    sum_of_two(world);
  };
  const std::jthread first(rank, 0);
  {
    const int fd = connect_to(setups[0].addresses[0].port);
    struct {
      char magic[8] = {'c', 'a', 'i', 'r', 'n', '/', '2', 0};
      int32_t from = 1, to = 0;
      uint16_t channel = 0, channels = 1;
      uint8_t nonce[32] = {};
    } hello;
    EXPECT_EQ(::send(fd, &hello, sizeof hello, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof hello));
    uint8_t challenge[64];
    EXPECT_EQ(::recv(fd, challenge, sizeof challenge, MSG_WAITALL), 64);
    EXPECT_EQ(::send(fd, challenge + 32, 32, MSG_NOSIGNAL), 32);
    char byte = 0;
    EXPECT_LE(::recv(fd, &byte, 1, 0), 0);  // closed
    ::close(fd);
  }
  rank(1);
}

TEST(Net, ARankThatNeverComesIsNamed) {
  auto setups = make_net_setups(3);
  try {
    make_net_transport(setups[0], {.connect_deadline = 100ms});
    ADD_FAILURE() << "connected with nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("rank 1, 2 lost: not there 0.1 s after the start"));
  }
  ::close(setups[1].listener_fd);
  ::close(setups[2].listener_fd);
}

TEST(Net, AClosedPortIsNamedWithItsRank) {
  auto setups = make_net_setups(2);
  ::close(setups[0].listener_fd);
  try {
    make_net_transport(setups[1]);
    ADD_FAILURE() << "connected with nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.peer(), 0);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 lost: no connection at 127.0.0.1:"));
  }
}

TEST(Net, ACallThatNobodyAnswersIsRepeated) {
  const auto setups = make_net_setups(2);
  const auto rank = [&](int number) {
    World world(make_net_transport(setups[static_cast<size_t>(number)], {.handshake_deadline = 100ms}), {.deadline = 10s});
    sum_of_two(world);
  };
  const std::jthread second(rank, 1);
  const int silent = ::accept(setups[0].listener_fd, nullptr, nullptr);  // takes the first call and says nothing
  EXPECT_GE(silent, 0);
  char bytes[1000];
  EXPECT_GT(::recv(silent, bytes, sizeof bytes, 0), 0);
  while (::recv(silent, bytes, sizeof bytes, 0) > 0) {
  }
  rank(0);
  ::close(silent);
}

TEST(Net, ARankThatEndedBeforeItCalledIsNamedSoon) {
  const auto setups = make_net_setups(2);
  const std::jthread first([&] {
    try {
      make_net_transport(setups[0]);
      ADD_FAILURE() << "connected with nobody";
    } catch (const Error& error) {
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: its process has ended before it connected: nobody listens at 127.0.0.1:"));
    }
  });
  const int probe = ::accept(setups[1].listener_fd, nullptr, nullptr);  // rank 0 looks whether rank 1 is there
  EXPECT_GE(probe, 0);
  ::close(setups[1].listener_fd);
  ::close(probe);
}

TEST(Net, AnAgentMayTellOtherMachinesThatARankHasEnded) {
  const auto setups = make_net_setups(std::vector<int>{0, 1});
  const std::jthread first([&] {
    try {
      make_net_transport(setups[0]);
      ADD_FAILURE() << "connected with nobody";
    } catch (const Error& error) {
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: its process has ended before it connected, as its agent says"));
    }
  });
  NetSetup wrong = setups[1];
  wrong.key[0] ^= 1;
  announce_death(wrong, 10s);  // believed only from somebody with the key
  announce_death(setups[1], 10s);
  for (const int fd : setups[1].fds()) ::close(fd);
}

TEST(Net, AStopEndsTheWaitForPeers) {
  const auto setups = make_net_setups(2);
  base::Stop stop;
  stop.request();
  try {
    make_net_transport(setups[0], {.stop = &stop});
    ADD_FAILURE() << "connected with nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::cancelled);
  }
  ::close(setups[1].listener_fd);
}

TEST(Net, AMessageLongerThanAllowedIsRefusedBeforeItIsRead) {
  auto setups = make_net_setups(2);
  for (NetSetup& setup : setups) ::close(std::exchange(setup.segment_fd, -1));  // through the sockets
  const std::jthread honest([setup = setups[0]] {
    World world(make_net_transport(setup, {.message_bytes_max = 1000}));
    std::vector<float> x(500);
    try {
      world.everyone().recv({x.data(), 500, Dtype::f32}, 1, kW).wait();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: sent a bad frame: 2000 bytes, at most 1000 are allowed"));
    }
  });
  World world(make_net_transport(setups[1]));
  std::vector<float> x(500);
  Work work = world.everyone().send({x.data(), 500, Dtype::f32}, 0, kW);
  EXPECT_NO_THROW(work.wait());
}

// --- frames ------------------------------------------------------------------------------------------------------------------------------

Frame sample() {
  Frame frame{.kind = Frame::Kind::message, .purpose = Purpose::state, .bytes = 48, .offset = 3, .number = 9};
  frame.envelope = {.group = 5, .sequence = 6, .step = 7, .signature = {OperationKind::gather, Dtype::bf16, Reduce::max, 2, 24}};
  std::strcpy(frame.envelope.what, "layers.0");
  return frame;
}

TEST(Frame, ComesBackAsItWas) {
  const auto header = encode(sample());
  const Frame back = decode(header, 100);
  EXPECT_EQ(back.kind, Frame::Kind::message);
  EXPECT_EQ(back.purpose, Purpose::state);
  EXPECT_EQ(back.bytes, 48);
  EXPECT_EQ(back.offset, 3);
  EXPECT_EQ(back.number, 9u);
  EXPECT_EQ(back.envelope.key(), sample().envelope.key());
  EXPECT_EQ(back.envelope.signature, sample().envelope.signature);
  EXPECT_STREQ(back.envelope.what, "layers.0");
}

TEST(Frame, EveryLieIsRefusedWithItsName) {
  const auto refused = [](auto spoil) {
    Frame frame = sample();
    auto header = encode(frame);
    spoil(frame, header);
    try {
      decode(header, 100);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto byte = [&](size_t at, uint8_t value) { return refused([=](Frame&, auto& header) { header[at] = std::byte{value}; }); };
  EXPECT_THAT(byte(0, 0), HasSubstr("it begins with"));
  EXPECT_THAT(byte(4, 9), HasSubstr("version 9"));
  EXPECT_THAT(byte(6, 6), HasSubstr("kind 6"));
  EXPECT_THAT(byte(7, 9), HasSubstr("purpose 9"));
  EXPECT_THAT(byte(28, 12), HasSubstr("operation 12"));
  EXPECT_THAT(byte(29, 7), HasSubstr("dtype 7"));
  EXPECT_THAT(byte(30, 3), HasSubstr("reduction 3"));
  EXPECT_THAT(refused([](Frame& f, auto& header) { f.bytes = 101, header = encode(f); }), HasSubstr("101 bytes, at most 100"));
  EXPECT_THAT(refused([](Frame& f, auto& header) { f.bytes = -1, header = encode(f); }), HasSubstr("-1 bytes"));
  EXPECT_THAT(refused([](Frame& f, auto& header) { f.offset = -1, header = encode(f); }), HasSubstr("offset -1"));
  EXPECT_EQ(refused([](Frame& f, auto& header) { f.bytes = 100, header = encode(f); }), "accepted");
}

TEST(Frame, NamesFromOutsideAreCutAndCleaned) {
  Frame frame = sample();
  std::memset(frame.envelope.what, '\n', sizeof frame.envelope.what);
  const Frame back = decode(encode(frame), 100);
  EXPECT_EQ(std::string(back.envelope.what), std::string(39, '?'));
}

}  // namespace
}  // namespace cairn::comm
