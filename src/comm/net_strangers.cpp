#include "comm/net_strangers.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

namespace cairn::comm {
namespace {

constexpr size_t kPresentMax = 64;
constexpr auto kNoFilesPause = std::chrono::milliseconds(50);  // where the system has no file for another connection

}  // namespace

Strangers::Strangers(asio::io_context& io, int listener_fd, const Tls* tls, std::chrono::nanoseconds patience, Recognise recognise,
                     Refused refused)
    : io_(io),
      listener_(io, protocol_of(listener_fd), listener_fd),
      tls_(tls),
      patience_(patience),
      recognise_(std::move(recognise)),
      refused_(std::move(refused)) {
  asio::co_spawn(io_, accept_all(), asio::detached);
}

void Strangers::close() {
  closed_ = true;
  asio::error_code ignored;
  listener_.close(ignored);
  for (const auto& stranger : present_) {
    stranger->timer.cancel();
    stranger->stream.close();
  }
}

asio::awaitable<void> Strangers::accept_all() {
  while (!closed_) {
    asio::error_code error;
    auto stranger = std::make_shared<Stranger>(io_);
    co_await listener_.async_accept(stranger->stream.socket(), asio::redirect_error(asio::use_awaitable, error));
    if (closed_ || error == asio::error::operation_aborted) co_return;
    if (error) {  // (a caller that has gone again, or no file for it)
      stranger->timer.expires_after(kNoFilesPause);
      co_await stranger->timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if (present_.size() >= kPresentMax) {
      present_.front()->stream.close();
      present_.pop_front();
    }
    present_.push_back(stranger);
    asio::co_spawn(io_, talk(std::move(stranger)), asio::detached);
  }
}

asio::awaitable<void> Strangers::talk(std::shared_ptr<Stranger> stranger) {
  stranger->timer.expires_after(patience_);
  stranger->timer.async_wait([stranger](asio::error_code error) {
    if (!error) stranger->stream.close();
  });
  asio::error_code ignored;
  const std::string address = stranger->stream.socket().remote_endpoint(ignored).address().to_string();
  bool began = false;
  try {
    co_await stranger->stream.begin(tls_, Tls::Side::is_called);
    began = true;
    co_await recognise_(stranger->stream);
  } catch (const std::exception& error) {  // it costs us nothing but this connection
    if (!began && refused_ && std::string_view(error.what()) != kHungUp) refused_(address);
  }
  stranger->timer.cancel();
  present_.remove(stranger);
}

}  // namespace cairn::comm
