// Frames to and from one rank as transport messages, with back-pressure; channel.h explains it.
#include "comm/mailbox/channel.h"

#include <cstring>
#include <utility>

namespace cairn::comm {
namespace {

enum Step : uint32_t { header_step, names_step, body_step };

}  // namespace

Channel::Channel(Transport& transport, int peer, uint64_t group, int64_t body_bytes_max, int64_t unread_bytes_max, Reader reader)
    : transport_(transport),
      peer_(peer),
      group_(group),
      body_bytes_max_(body_bytes_max),
      unread_bytes_max_(unread_bytes_max),
      reader_(std::move(reader)) {}

Envelope Channel::envelope(uint64_t sequence, uint32_t step, int64_t bytes) const {
  Envelope made;
  made.group = group_;
  made.sequence = sequence;
  made.step = step;
  made.signature = {.kind = OperationKind::send_recv, .count = bytes};
  std::strncpy(made.what, "mail", sizeof(made.what) - 1);
  return made;
}

Coroutine Channel::read() {
  try {
    for (uint64_t sequence = 0;; ++sequence) {
      co_await Room{*this};
      std::array<std::byte, kMailboxHeaderBytes> bytes;
      co_await transport_.recv(peer_, envelope(sequence, header_step, kMailboxHeaderBytes), bytes.data(), kMailboxHeaderBytes);
      MailboxFrameHeader header = decode_header(bytes, body_bytes_max_);
      std::string names(static_cast<size_t>(header.names_bytes()), ' ');
      co_await transport_.recv(peer_, envelope(sequence, names_step, header.names_bytes()), names.data(), header.names_bytes());
      std::vector<std::byte> body(static_cast<size_t>(header.body_bytes));
      if (header.body_bytes > 0) {
        co_await transport_.recv(peer_, envelope(sequence, body_step, header.body_bytes), body.data(), header.body_bytes);
      }
      reader_.arrived(peer_, assemble(std::move(header), names, std::move(body)));
    }
  } catch (const Error& error) {
    reader_.broken(peer_, error);
  }
}

void Channel::send(MailboxFrame&& frame, Sent sent) {
  auto one = std::make_unique<Outgoing>();
  one->sequence = next_sent_++;
  one->frame = std::move(frame);
  one->header = encode_header(one->frame);
  one->names = names_of(one->frame);
  one->sent = std::move(sent);
  outgoing_.push_back(std::move(one));
  outgoing_.back()->task = post(*outgoing_.back());
  idle();
}

Coroutine Channel::post(Outgoing& one) {
  const std::span<const std::byte> body = one.frame.content();
  const auto names_bytes = static_cast<int64_t>(one.names.size()), body_bytes = static_cast<int64_t>(body.size());
  const auto put = [&](uint32_t step, Purpose purpose, const void* data, int64_t bytes) {
    return transport_.send(peer_, envelope(one.sequence, step, bytes), purpose, data, bytes);
  };
  try {
    Completion header = put(header_step, Purpose::control, one.header.data(), kMailboxHeaderBytes);
    Completion names = put(names_step, Purpose::control, one.names.data(), names_bytes);
    Completion rest = body_bytes > 0 ? put(body_step, one.frame.purpose, body.data(), body_bytes) : Completion();
    co_await header;
    co_await names;
    co_await rest;
    if (const Sent sent = std::exchange(one.sent, nullptr)) sent(nullptr);
  } catch (const Error& error) {
    if (const Sent sent = std::exchange(one.sent, nullptr)) sent(&error);
  }
  one.done = true;
}

void Channel::close(const Error& why) {
  closed_ = true;
  for (const auto& one : outgoing_) {  // they stay in the queue: half a message cannot be taken back from a shared connection
    if (const Sent sent = std::exchange(one->sent, nullptr)) sent(&why);
  }
}

bool Channel::idle() {
  while (!outgoing_.empty() && outgoing_.front()->done && outgoing_.front()->task.done()) outgoing_.pop_front();
  return closed_ || outgoing_.empty();
}

void Channel::release(int64_t bytes) {
  unread_bytes_ -= bytes;
  if (full()) return;
  if (const auto reader = std::exchange(waiting_for_room_, nullptr)) reader.resume();
}

}  // namespace cairn::comm
