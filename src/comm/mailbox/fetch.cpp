// Resumable transfers: the receiver pulls.
//
// The fetching side keeps chunks_in_flight requests (ask: offset, length) outstanding, from received() on; the offering mailbox answers
// each with a chunk, the size of the whole object and its checksum. The chunks of one attempt must arrive in order. A damaged or
// out-of-order chunk starts a new attempt at received(); after 3 of those in a row the fetch fails. What arrived stays in the
// IncomingTransfer, and the checksum of the whole is verified at the end.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "comm/mailbox/state.h"

namespace cairn::comm {
namespace {

constexpr int kTrialsMax = 3;  // attempts in a row after damaged or out-of-order chunks

}  // namespace

void Mailbox::State::fetch(Fetch&& fetch, const Pending& request) {
  if (fetch.into->complete()) return request->succeed();
  const uint64_t number = next_fetch++;
  const NodeDirectory::Member* member = directory.find(fetch.from);
  const bool here = member && member->rank == world.rank();
  const std::string from = fetch.from;
  Fetch& kept = fetches.emplace(number, std::move(fetch)).first->second;
  if (const auto trouble = directory.trouble(from)) return fail_fetch(number, *trouble);
  if (!here) return ask_more(number, kept);
  const auto offer = offers.find({from, kept.into->id()});
  if (offer == offers.end()) {
    return fail_fetch(number, Error(Error::Kind::bad_input, fmt::format("node {} does not offer {}", from, kept.into->id())));
  }
  const auto& bytes = *offer->second.bytes;
  const int64_t begun = std::min(kept.into->received(), static_cast<int64_t>(bytes.size()));
  try {
    kept.into->add(from, begun, std::span(bytes).subspan(static_cast<size_t>(begun)), static_cast<int64_t>(bytes.size()),
                   offer->second.checksum);
    request->succeed();
    fetches.erase(number);
  } catch (const Error& error) {
    fail_fetch(number, error);
  }
}

void Mailbox::State::ask_more(uint64_t number, Fetch& fetch) {
  const int64_t most = options.chunk_bytes * options.chunks_in_flight;
  while (true) {
    const auto total = fetch.into->total();
    const int64_t unanswered = fetch.asked - fetch.into->received();
    const bool enough = total ? unanswered >= most || (fetch.asked >= *total && unanswered > 0) : unanswered > 0;
    if (enough) return;
    const int64_t offset = fetch.asked;
    fetch.asked += options.chunk_bytes;
    if (total) fetch.asked = std::min(fetch.asked, *total);
    route({.kind = MailboxFrame::Kind::ask,
           .epoch = epoch,
           .from = fetch.node,
           .to = fetch.from,
           .tag = fetch.into->id(),
           .number = number,
           .offset = offset,
           .total = options.chunk_bytes},
          nullptr);
    if (total && offset >= *total) return;
  }
}

void Mailbox::State::answer(const MailboxFrame& ask) {
  if (!queues.contains(ask.to)) {
    counts.no_node += 1;
    return;
  }
  MailboxFrame reply{.epoch = epoch, .from = ask.to, .to = ask.from, .tag = ask.tag, .number = ask.number, .offset = ask.offset};
  const auto found = offers.find({ask.to, ask.tag});
  const int64_t size = found == offers.end() ? -1 : static_cast<int64_t>(found->second.bytes->size());
  if (ask.offset > size) {
    const std::string why =
        size < 0 ? fmt::format("node {} does not offer {}", ask.to, ask.tag)
                 : fmt::format("node {} was asked for bytes from {} on of {}, which has {}", ask.to, ask.offset, ask.tag, size);
    reply.kind = MailboxFrame::Kind::refusal;
    reply.body.resize(why.size());
    std::memcpy(reply.body.data(), why.data(), why.size());
  } else {
    reply.kind = MailboxFrame::Kind::chunk;
    reply.purpose = found->second.purpose;
    reply.total = size;
    reply.whole_checksum = found->second.checksum;
    reply.source = found->second.bytes;
    reply.source_bytes = std::min({ask.total, options.body_bytes_max, size - ask.offset});
  }
  route(std::move(reply), nullptr);
}

void Mailbox::State::take_chunk(MailboxFrame&& chunk) {
  const auto found = fetches.find(chunk.number);
  if (found == fetches.end()) return;  // of an earlier attempt
  Fetch& fetch = found->second;
  const Pending request = fetch.request.lock();
  if (!request || request->complete || now() >= request->due) {
    fetches.erase(found);
    return;
  }
  if (chunk.from != fetch.from || chunk.tag != fetch.into->id()) return;
  if (chunk.kind == MailboxFrame::Kind::refusal) {
    std::string why(reinterpret_cast<const char*>(chunk.body.data()), std::min<size_t>(chunk.body.size(), 256));
    std::replace_if(
        why.begin(), why.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, '?');
    return fail_fetch(chunk.number, Error(Error::Kind::bad_input, why));
  }
  if (chunk.damaged) counts.damaged += 1;
  try {
    if (chunk.damaged || !fetch.into->add(chunk.from, chunk.offset, chunk.body, chunk.total, chunk.whole_checksum)) {
      return ask_again(chunk.number);
    }
  } catch (const Error& error) {
    return fail_fetch(chunk.number, error);
  }
  request->due = now() + fetch.within;
  if (!chunk.body.empty()) fetch.trials = 0;
  const bool short_one = static_cast<int64_t>(chunk.body.size()) < std::min(options.chunk_bytes, chunk.total - chunk.offset);
  if (fetch.into->complete()) {
    request->succeed();
    fetches.erase(found);
  } else if (short_one) {  // the chunks requested after it do not follow it
    ask_again(chunk.number);
  } else {
    ask_more(chunk.number, fetch);
  }
}

// Starts a new attempt at received(); chunks in flight of the old one are ignored.
void Mailbox::State::ask_again(uint64_t number) {
  auto fetch = fetches.extract(number);
  fetch.mapped().asked = fetch.mapped().into->received();
  fetch.key() = next_fetch++;
  const auto kept = fetches.insert(std::move(fetch)).position;
  if (++kept->second.trials > kTrialsMax) {
    Error error(Error::Kind::lost_peer, fmt::format("node {} sent {} pieces damaged or out of order", kept->second.from, kTrialsMax + 1));
    const NodeDirectory::Member* member = directory.find(kept->second.from);
    return fail_fetch(kept->first, error.about_peer(member ? member->rank : -1));
  }
  ask_more(kept->first, kept->second);
}

void Mailbox::State::fail_fetch(uint64_t number, const Error& why) {
  const auto found = fetches.find(number);
  const Fetch fetch = std::move(found->second);
  fetches.erase(found);
  const Pending request = fetch.request.lock();
  if (!request) return;
  Error error = why;
  const std::string total = fetch.into->total() ? fmt::to_string(*fetch.into->total()) : "an unknown number of";
  request->fail(error.with(fmt::format("{} of {} bytes have come and are kept for the next attempt", fetch.into->received(), total)));
}

void Mailbox::State::fail_fetches(const std::function<bool(const Fetch&)>& which, const Error& why) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, fetch] : fetches) {
    if (which(fetch)) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) fail_fetch(number, why);
}

}  // namespace cairn::comm
