#include "comm/net_meeting.h"

#include <optional>

#include <asio/awaitable.hpp>
#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net_handshake.h"

namespace cairn::comm {
namespace {

using asio::ip::tcp;

constexpr int kStrangersMax = 64;  // connections that have not shown the key yet; further ones wait in the system's queue

// The calling side of the handshake. Throws where the other is not rank `to` of this run.
asio::awaitable<void> introduce(tcp::socket& socket, const NetSetup& setup, int to) {
  const Hello hello = make_hello(setup, to);
  Challenge challenge;
  co_await asio::async_write(socket, asio::buffer(&hello, sizeof hello), asio::use_awaitable);
  co_await asio::async_read(socket, asio::buffer(&challenge, sizeof challenge), asio::use_awaitable);
  const Bytes32 proof = make_proof(setup, hello, challenge);
  co_await asio::async_write(socket, asio::buffer(proof), asio::use_awaitable);
}

// The called side: the caller's rank. Throws where it is none of this run that should call.
asio::awaitable<int> recognise(tcp::socket& socket, const NetSetup& setup) {
  Hello hello;
  Bytes32 proof;
  co_await asio::async_read(socket, asio::buffer(&hello, sizeof hello), asio::use_awaitable);
  const Challenge challenge = make_challenge(setup, hello);
  co_await asio::async_write(socket, asio::buffer(&challenge, sizeof challenge), asio::use_awaitable);
  co_await asio::async_read(socket, asio::buffer(proof), asio::use_awaitable);
  check_proof(setup, hello, challenge, proof);
  co_return hello.from;
}

class Meeting {
 public:
  Meeting(const NetSetup& setup, const NetOptions& options) : io_(1), setup_(setup), options_(options) {
    for (int rank = 0; rank < setup.size; ++rank) sockets_.emplace_back(io_);
    missing_ = setup.size - 1;
  }

  std::vector<int> run() {
    std::optional<tcp::acceptor> listener;
    if (setup_.rank + 1 < setup_.size) {
      listener.emplace(io_, tcp::v4(), setup_.listener_fd);
      asio::co_spawn(io_, accept_all(*listener), asio::detached);
    }
    for (int rank = 0; rank < setup_.rank; ++rank) asio::co_spawn(io_, call(rank), asio::detached);
    const base::RealClock clock;
    while (missing_ > 0 && !failure_ && clock.now() < options_.connect_deadline) io_.run_one_for(options_.connect_deadline - clock.now());
    if (listener) listener->close();
    over_ = true;
    for (const auto& timer : timers_) timer->cancel();
    for (auto& stranger : strangers_) stranger->close();
    io_.restart();
    io_.poll();  // lets the conversations that were cut short end
    if (failure_) throw Error(*failure_);
    if (missing_ > 0) throw absent();
    std::vector<int> connected;
    for (tcp::socket& socket : sockets_) connected.push_back(socket.is_open() ? socket.release() : -1);
    return connected;
  }

 private:
  asio::awaitable<void> accept_all(tcp::acceptor& listener) {
    while (!over_) {
      asio::error_code error;
      auto socket = std::make_shared<tcp::socket>(io_);
      co_await listener.async_accept(*socket, asio::redirect_error(asio::use_awaitable, error));
      if (over_ || error == asio::error::operation_aborted) co_return;
      if (error || strangers_.size() >= kStrangersMax) continue;  // dropped: closed as it goes out of scope
      asio::co_spawn(io_, be_called(std::move(socket)), asio::detached);
    }
  }

  asio::awaitable<void> be_called(std::shared_ptr<tcp::socket> socket) {
    strangers_.push_back(socket);
    const auto timer = guard(socket);
    try {
      const int from = co_await recognise(*socket, setup_);
      if (!sockets_[from].is_open() && !over_) {
        sockets_[from] = std::move(*socket);
        --missing_;
      }
    } catch (const std::exception&) {  // a stranger: it costs us nothing but this socket
    }
    timer->cancel();
    std::erase(strangers_, socket);
    std::erase(timers_, timer);
  }

  asio::awaitable<void> call(int rank) {
    const auto socket = std::make_shared<tcp::socket>(io_);
    try {
      const tcp::endpoint there(asio::ip::address_v4::loopback(), setup_.ports[rank]);
      co_await socket->async_connect(there, asio::use_awaitable);
      co_await introduce(*socket, setup_, rank);
      sockets_[rank] = std::move(*socket);
      --missing_;
    } catch (const std::exception& error) {
      if (over_) co_return;
      failure_ = Error(Error::Kind::lost_peer,
                       fmt::format("rank {} lost: no connection at 127.0.0.1:{}: {}", rank, setup_.ports[rank], error.what()));
      failure_->about_peer(rank);
    }
  }

  std::shared_ptr<asio::steady_timer> guard(const std::shared_ptr<tcp::socket>& socket) {
    auto timer = std::make_shared<asio::steady_timer>(io_, options_.handshake_deadline);
    timer->async_wait([socket](asio::error_code error) {
      if (!error) socket->close(error);
    });
    timers_.push_back(timer);
    return timer;
  }

  Error absent() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < setup_.size; ++rank) {
      if (rank != setup_.rank && !sockets_[rank].is_open()) ranks.push_back(rank);
    }
    Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: not there {:.1f} s after the start", fmt::join(ranks, ", "),
                                                    base::seconds(options_.connect_deadline)));
    error.about_peer(ranks.front());
    return error;
  }

  asio::io_context io_;
  const NetSetup& setup_;
  const NetOptions& options_;
  std::vector<tcp::socket> sockets_;
  std::vector<std::shared_ptr<tcp::socket>> strangers_;
  std::vector<std::shared_ptr<asio::steady_timer>> timers_;
  int missing_ = 0;
  bool over_ = false;
  std::optional<Error> failure_;
};

}  // namespace

std::vector<int> meet(const NetSetup& setup, const NetOptions& options) { return Meeting(setup, options).run(); }

}  // namespace cairn::comm
