// The protocol of a round. Members are numbered machines; the leader is the lowest live one.
//
//   1. Every member sends its slopes to every other ("slopes").
//   2. The leader waits for all live members, for one time limit, and sends a manifest: which messages count, by CRC, and who takes part in
//      the next round. Late messages do not count. A machine that misses three rounds, or is lost, is no longer a member.
//   3. A member that lacks a message of the manifest asks the leader, then the others ("want"). Then all apply exactly the same messages.
//
// If the leader dies, the next one asks all members for its manifest ("decided?"); a member that answers "undecided" will ignore a manifest
// of an earlier leader. Every `hash_every` rounds members compare hashes of their weights; one that differs from the majority rebuilds its
// weights from the base and the log. A machine that joins gets the log from the leader ("welcome") and replays it.
//
// There is no vote on the leader: if a leader is cut off but alive, two may lead for a while, and then the hashes differ.
#include "sync/one_byte/one_byte.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/world.h"

namespace cairn::sync {
namespace {

using comm::Purpose;
using Numbers = std::vector<uint64_t>;

constexpr int64_t kMaxMissed = 3;   // rounds in a row
constexpr int kLeaderPatience = 3;  // time limits after which a silent leader is suspected

std::string node_name(uint32_t machine) { return fmt::format("machine-{}", machine); }

uint32_t machine_of(std::string_view name) {
  uint32_t machine = 0;
  const size_t begin = name.find('-') + 1;
  std::from_chars(name.data() + begin, name.data() + name.size(), machine);
  return machine;
}

std::vector<std::byte> as_body(const Numbers& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

// Requires exactly `count` numbers; 0: any.
Numbers numbers_in(const comm::MailboxMessage& mail, size_t count) {
  Numbers numbers(mail.body.size() / sizeof(uint64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), mail.body.data(), numbers.size() * sizeof(uint64_t));
  if (count > 0 && numbers.size() != count)
    throw Error(Error::Kind::corrupt_file, fmt::format("a message \"{}\" of {} bytes", mail.tag, mail.body.size()));
  return numbers;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

OneByte::OneByte(Setting setting) : setting_(std::move(setting)) {
  node_ = std::make_unique<comm::Node>(setting_.mailbox.open(node_name(setting_.machine)));
  base_hash_ = setting_.replica.hash();
}

OneByte::Deadline OneByte::now() const { return setting_.world.clock().now(); }
OneByte::Deadline OneByte::timeout() const {
  return std::chrono::nanoseconds(static_cast<int64_t>(setting_.replica.options().round_timeout_s * 1e9));
}

bool OneByte::is_alive(uint32_t machine) const {
  if (machine == setting_.machine) return true;
  if (suspected_.count(machine) > 0) return false;
  const std::map<std::string, int> nodes = setting_.mailbox.nodes();
  const auto found = nodes.find(node_name(machine));
  if (found == nodes.end()) return false;
  const std::vector<int> lost = setting_.world.lost();
  return std::find(lost.begin(), lost.end(), found->second) == lost.end();
}

uint32_t OneByte::leader() const {
  for (const uint32_t member : members_)
    if (is_alive(member)) return member;
  return setting_.machine;
}

void OneByte::send_to(uint32_t machine, std::string_view tag, std::vector<std::byte> body, Purpose purpose) {
  if (machine != setting_.machine && is_alive(machine)) node_->send(node_name(machine), tag, std::move(body), {.purpose = purpose});
}

void OneByte::send_to_members(std::string_view tag, const std::vector<std::byte>& body, Purpose purpose) {
  for (const uint32_t member : members_) send_to(member, tag, body, purpose);
}

bool OneByte::handle_until(Deadline until, const std::function<bool()>& condition) {
  // Wakes up regularly: a machine that was lost sends nothing.
  const Deadline look = std::max<Deadline>(timeout() / 4, std::chrono::milliseconds(1));
  while (!condition()) {
    const Deadline left = until - now();
    if (left <= Deadline::zero()) return false;
    const comm::Request request = node_->receive({.within = std::min(left, look)});
    try {
      request.wait();
    } catch (const Error&) {
      if (!request.timed_out()) throw;
      continue;
    }
    handle(request);
  }
  return true;
}

void OneByte::handle_waiting() {
  while (true) {
    const comm::Request request = node_->receive({.within = timeout()});
    setting_.mailbox.progress();
    if (!request.ready()) return;
    handle(request);
  }
}

void OneByte::handle(const comm::Request& request) {
  try {
    handle(request.message());
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
    setting_.world.log().warn("round {}: {}", round_, error.what());  // as if it had not arrived
  }
}

void OneByte::handle(const comm::MailboxMessage& mail) {
  const uint32_t from = machine_of(mail.from);
  suspected_.erase(from);
  if (mail.tag == "slopes") {
    on_slopes(mail);
  } else if (mail.tag == "manifest") {
    RoundManifest manifest = decode_manifest(mail.body);
    const auto promised = promised_.find(manifest.round);
    const bool stale = promised != promised_.end() && from < promised->second;
    if (manifest.round >= round_ && !stale) manifests_.emplace(manifest.round, std::move(manifest));
  } else if (mail.tag == "want") {
    const Numbers wanted = numbers_in(mail, 2);
    const auto& messages = messages_[static_cast<uint32_t>(wanted[0])];
    const auto found = messages.find(static_cast<uint32_t>(wanted[1]));
    if (found != messages.end()) send_to(from, "slopes", found->second, Purpose::data);
  } else if (mail.tag == "decided?") {
    answer_about_manifest(from, static_cast<uint32_t>(numbers_in(mail, 1)[0]));
  } else if (mail.tag == "undecided") {
    if (numbers_in(mail, 1)[0] == round_) silent_.insert(from);
  } else if (mail.tag == "join") {
    on_join(from, numbers_in(mail, 3));
  } else if (mail.tag == "hello") {
    greeted_[from] = numbers_in(mail, 2)[0] ^ numbers_in(mail, 2)[1];
  } else if (mail.tag == "hash") {
    const Numbers told = numbers_in(mail, 2);
    hashes_[static_cast<uint32_t>(told[0])][from] = told[1];
  } else if (mail.tag == "tensors?") {
    send_to(from, "tensors", as_body(setting_.replica.tensor_hashes()));
  } else if (mail.tag == "tensors") {
    tensor_hashes_[from] = numbers_in(mail, 0);
  } else if (mail.tag == "welcome") {
    welcome_ = mail.body;
  } else if (mail.tag == "refused") {
    refusal_ = mail.text();
  }
}

void OneByte::on_slopes(const comm::MailboxMessage& mail) {
  const SlopeMessage message = decode_message(mail.body, setting_.replica.code());
  if (message.run != setting_.replica.run())
    throw Error(Error::Kind::corrupt_file, fmt::format("machine {} sends slopes of run {:016x}", message.machine, message.run));
  if (message.round >= round_) messages_[message.round].emplace(message.machine, mail.body);  // older ones are too late
}

const RoundManifest* OneByte::known_manifest(uint32_t round) {
  const auto waiting = manifests_.find(round);
  return waiting != manifests_.end() ? &waiting->second : nullptr;
}

// After "undecided" this machine ignores manifests of earlier leaders for that round.
void OneByte::answer_about_manifest(uint32_t machine, uint32_t round) {
  if (const RoundManifest* manifest = known_manifest(round)) return send_to(machine, "manifest", encode_manifest(*manifest));
  if (round < round_) {
    const size_t begin = record_begins_[round], end = round + 1 < record_begins_.size() ? record_begins_[round + 1] : log_.size();
    const std::vector<RoundRecord> record = decode_log(std::span(log_).subspan(begin, end - begin), setting_.replica.code());
    for (const SlopeMessage& message : record[0].messages) send_to(machine, "slopes", encode_message(message), Purpose::data);
    return send_to(machine, "manifest", encode_manifest(record[0].manifest));
  }
  promised_[round] = std::max(promised_[round], machine);
  send_to(machine, "undecided", as_body({round}));
}

void OneByte::on_join(uint32_t machine, const Numbers& asked) {
  if (!leads()) return;  // the newcomer asks everybody; the leader answers
  const auto refuse = [&](const std::string& why) {
    const auto bytes = std::as_bytes(std::span(why));
    node_->send(node_name(machine), "refused", {bytes.begin(), bytes.end()}, {.purpose = Purpose::control});
  };
  if (asked[1] != base_hash_)
    return refuse(fmt::format("machine {} begins with other weights (hash {:016x}, here {:016x}): give it the base checkpoint of this run",
                              machine, asked[1], base_hash_));
  if (asked[2] != setting_.replica.fingerprint())
    return refuse(
        fmt::format("machine {} draws other directions or reads codes otherwise: noise, code, scale, eps, the trained parameters "
                    "and the build must be those of this run",
                    machine));
  joining_[machine] = static_cast<uint32_t>(asked[0]);
}

void OneByte::start(std::vector<uint32_t> members) {
  members_ = std::move(members);
  std::sort(members_.begin(), members_.end());
  const uint64_t fingerprint = setting_.replica.fingerprint();
  for (const uint32_t member : members_)
    if (member != setting_.machine)
      node_->send(node_name(member), "hello", as_body({fingerprint, base_hash_}), {.purpose = Purpose::control});
  const bool all = handle_until(now() + timeout() * kLeaderPatience, [&] { return greeted_.size() + 1 >= members_.size(); });
  if (!all) base::fail_input("only {} of {} machines of a new run have arrived", greeted_.size() + 1, members_.size());
  for (const auto& [machine, told] : greeted_)
    if (told != (fingerprint ^ base_hash_))
      base::fail_input(
          "machine {} begins with other weights, or draws other directions than machine {}: base checkpoint, noise, code, scale, "
          "eps, the trained parameters and the build must be the same",
          machine, setting_.machine);
}

void OneByte::join(Deadline within) {
  const Deadline until = now() + within;
  welcome_.clear(), refusal_.clear();
  while (welcome_.empty()) {
    if (now() >= until) throw Error(Error::Kind::lost_peer, fmt::format("machine {} asked to join, and nobody answered", setting_.machine));
    const std::vector<std::byte> asked = as_body({round_, base_hash_, setting_.replica.fingerprint()});
    for (const auto& [name, rank] : setting_.mailbox.nodes())
      if (name != node_->name()) node_->send(name, "join", asked, {.purpose = Purpose::control});
    handle_until(std::min(until, now() + timeout() * kLeaderPatience), [&] { return !welcome_.empty() || !refusal_.empty(); });
    if (!refusal_.empty()) base::fail_input("{}", refusal_);
  }
  uint64_t hash = 0;
  std::memcpy(&hash, welcome_.data(), sizeof hash);
  replay(std::span(welcome_).subspan(sizeof hash));
  if (setting_.replica.hash() != hash)
    throw Error(
        Error::Kind::broken_invariant,
        fmt::format("machine {} has replayed {} rounds and holds other weights than the machine that sent them", setting_.machine, round_));
}

void OneByte::replay(std::span<const std::byte> log) {
  for (const RoundRecord& record : decode_log(log, setting_.replica.code())) {
    if (record.manifest.round < round_) continue;
    if (record.manifest.round != round_)
      base::fail_input("a log goes on with round {} where round {} is due", record.manifest.round, round_);
    apply(record);
  }
}

void OneByte::send_slopes(RoundFacts& facts) {
  const OneByteReplica& replica = setting_.replica;
  const auto begun = setting_.world.wall().now();
  std::vector<float> slopes;
  std::vector<double> sizes, changes;
  double loss = 0;
  const int64_t samples = setting_.has_data ? replica.options().samples_per_round : 0;
  for (int64_t k = 0; k < samples; ++k) {
    const Slope slope = replica.measure(setting_.loss, round_, setting_.machine, k);
    slopes.push_back(slope.slope);
    sizes.push_back(std::abs(static_cast<double>(slope.slope)));
    changes.push_back(std::abs(slope.above - slope.below) / std::max(std::abs(slope.above), 1e-30));
    loss += (slope.above + slope.below) / 2 / static_cast<double>(samples);
  }
  const base::Random rounding = base::Random(replica.run()).for_purpose("rounding of slopes").for_index(setting_.machine).for_index(round_);
  const EncodedSlopes encoded = encode_slopes(replica.code(), slopes, replica.options().unbiased ? &rounding : nullptr);
  facts.clipped = encoded.clipped, facts.not_finite = encoded.not_finite;
  facts.change_median = median(changes), facts.slope_median = median(sizes);
  if (!sizes.empty())
    facts.slope_min = *std::min_element(sizes.begin(), sizes.end()), facts.slope_max = *std::max_element(sizes.begin(), sizes.end());
  facts.forward_s = base::seconds(setting_.world.wall().now() - begun);
  const std::vector<std::byte> message = encode_message({.run = replica.run(),
                                                         .round = round_,
                                                         .machine = setting_.machine,
                                                         .slopes = static_cast<uint16_t>(slopes.size()),
                                                         .weight = setting_.weight,
                                                         .mean_loss = static_cast<float>(loss),
                                                         .codes = encoded.bytes});
  messages_[round_][setting_.machine] = message;
  send_to_members("slopes", message, Purpose::gradient);
}

std::vector<uint32_t> OneByte::next_members() const {
  std::set<uint32_t> next;
  const auto& here = messages_.at(round_);
  for (const uint32_t member : members_) {
    const auto missed = missed_.find(member);
    const int64_t before = missed == missed_.end() ? 0 : missed->second;
    if (is_alive(member) && (here.count(member) > 0 || before + 1 < kMaxMissed)) next.insert(member);
  }
  for (const auto& [machine, rounds] : joining_)
    if (is_alive(machine)) next.insert(machine);
  return {next.begin(), next.end()};
}

RoundManifest OneByte::decide() {
  const float rate = setting_.rate(round_);
  RoundManifest manifest{.round = round_, .leader = setting_.machine, .rate = rate};
  manifest.keep = static_cast<float>(1 - static_cast<double>(rate) * setting_.replica.options().weight_decay);
  for (const auto& [machine, bytes] : messages_[round_])
    if (std::binary_search(members_.begin(), members_.end(), machine)) manifest.accepted.push_back({machine, crc_of(bytes)});
  manifest.members = next_members();
  return manifest;
}

void OneByte::take_over() {
  silent_.clear();
  send_to_members("decided?", as_body({round_}));
  handle_until(now() + timeout(), [&] {
    return known_manifest(round_) || std::all_of(members_.begin(), members_.end(), [&](uint32_t member) {
             return member == setting_.machine || !is_alive(member) || silent_.count(member) > 0;
           });
  });
  if (const RoundManifest* manifest = known_manifest(round_)) send_to_members("manifest", encode_manifest(*manifest));
}

void OneByte::await_manifest() {
  const Deadline begun = now();
  while (!known_manifest(round_)) {
    const uint32_t lead = leader();
    if (lead != setting_.machine) {
      const bool heard = handle_until(now() + timeout() * kLeaderPatience, [&] { return known_manifest(round_) || leader() != lead; });
      if (!heard) suspected_.insert(lead);
      continue;
    }
    if (members_.front() != setting_.machine) take_over();
    handle_until(begun + timeout(), [&] {
      return known_manifest(round_) || std::all_of(members_.begin(), members_.end(), [&](uint32_t member) {
               return messages_[round_].count(member) > 0 || !is_alive(member);
             });
    });
    if (known_manifest(round_)) break;
    manifests_[round_] = decide();
    send_to_members("manifest", encode_manifest(manifests_[round_]));
  }
}

void OneByte::complete_messages() {
  const RoundManifest manifest = manifests_.at(round_);
  auto& here = messages_[round_];
  const auto missing = [&](const RoundManifest::Entry& entry) {
    const auto found = here.find(entry.machine);
    return found == here.end() || crc_of(found->second) != entry.crc;
  };
  for (const RoundManifest::Entry& entry : manifest.accepted) {
    std::vector<uint32_t> asked{manifest.leader};
    asked.insert(asked.end(), members_.begin(), members_.end());
    for (const uint32_t peer : asked) {
      if (!missing(entry)) break;
      if (peer == setting_.machine || !is_alive(peer)) continue;
      here.erase(entry.machine);
      send_to(peer, "want", as_body({round_, entry.machine}));
      handle_until(now() + timeout(), [&] { return !missing(entry) || !is_alive(peer); });
    }
    if (missing(entry))
      throw Error(Error::Kind::lost_peer, fmt::format("round {}: nobody has the message of machine {} that counts", round_, entry.machine))
          .about_peer(static_cast<int>(entry.machine));
  }
}

void OneByte::apply(const RoundRecord& record) {
  setting_.replica.apply(record);
  record_begins_.push_back(log_.size());
  append_record(record, log_);
  if (!setting_.log.empty()) {
    std::ofstream file(setting_.log, std::ios::binary | (round_ == 0 ? std::ios::trunc : std::ios::app));
    file.write(reinterpret_cast<const char*>(log_.data() + record_begins_.back()),
               static_cast<std::streamsize>(log_.size() - record_begins_.back()));
    if (!file.flush()) throw Error(Error::Kind::disk, fmt::format("{}: round {} could not be appended", setting_.log.string(), round_));
  }
  std::set<uint32_t> included;
  for (const SlopeMessage& message : record.messages) included.insert(message.machine);
  for (const uint32_t member : members_) missed_[member] = included.count(member) > 0 ? 0 : missed_[member] + 1;
  for (const uint32_t member : record.manifest.members)
    if (!std::binary_search(members_.begin(), members_.end(), member)) missed_[member] = 0;
  members_ = record.manifest.members;
  messages_.erase(messages_.begin(), messages_.lower_bound(round_));  // others may still ask for this round's
  manifests_.erase(manifests_.begin(), manifests_.upper_bound(round_));
  ++round_;
}

void OneByte::welcome() {
  std::vector<std::byte> hash = as_body({setting_.replica.hash()});
  for (const auto& [machine, rounds] : std::map<uint32_t, uint32_t>(joining_)) {
    if (!std::binary_search(members_.begin(), members_.end(), machine)) continue;
    std::vector<std::byte> body = hash;
    if (rounds < round_) body.insert(body.end(), log_.begin() + static_cast<std::ptrdiff_t>(record_begins_[rounds]), log_.end());
    send_to(machine, "welcome", std::move(body), Purpose::state);
    joining_.erase(machine);
  }
}

void OneByte::finish_round(RoundFacts& facts) {
  RoundRecord record{manifests_.at(round_), {}};
  double loss = 0;
  facts.included = false;
  for (const RoundManifest::Entry& entry : record.manifest.accepted) {
    record.messages.push_back(decode_message(messages_[round_].at(entry.machine), setting_.replica.code()));
    const SlopeMessage& message = record.messages.back();
    facts.samples += message.slopes;
    if (message.slopes > 0) loss += static_cast<double>(message.mean_loss), ++facts.machines;
    facts.included = facts.included || entry.machine == setting_.machine;
  }
  facts.mean_loss = facts.machines > 0 ? loss / static_cast<double>(facts.machines) : 0;
  const std::vector<uint32_t> voters = members_;
  const auto begun = setting_.world.wall().now();
  apply(record);
  facts.replay_s = base::seconds(setting_.world.wall().now() - begun);
  if (record.manifest.leader == setting_.machine) welcome();
  facts.out = !std::binary_search(members_.begin(), members_.end(), setting_.machine);
  if (round_ % static_cast<uint32_t>(setting_.replica.options().hash_every) == 0 && !facts.out) compare_hashes(voters, facts);
}

void OneByte::rebuild() {
  setting_.load_base();
  for (const RoundRecord& record : decode_log(log_, setting_.replica.code())) setting_.replica.apply(record);
}

void OneByte::compare_hashes(const std::vector<uint32_t>& voters, RoundFacts& facts) {
  const uint64_t mine = setting_.replica.hash();
  hashes_.erase(hashes_.begin(), hashes_.lower_bound(round_));
  auto& told = hashes_[round_];
  told[setting_.machine] = mine;
  for (const uint32_t voter : voters) send_to(voter, "hash", as_body({round_, mine}));
  handle_until(now() + timeout(), [&] {
    return std::all_of(voters.begin(), voters.end(), [&](uint32_t voter) { return told.count(voter) > 0 || !is_alive(voter); });
  });
  std::map<uint64_t, int64_t> votes;
  for (const auto& [machine, hash] : told) ++votes[hash];
  uint64_t right = told.begin()->second;  // on a tie, that of the lowest machine
  for (const auto& [machine, hash] : told)
    if (votes[hash] > votes[right]) right = hash;
  if (mine == right) return;
  const auto witness = std::find_if(told.begin(), told.end(), [&](const auto& one) { return one.second == right; })->first;
  tensor_hashes_.erase(witness);
  send_to(witness, "tensors?", {});
  handle_until(now() + timeout(), [&] { return tensor_hashes_.count(witness) > 0 || !is_alive(witness); });
  const std::vector<uint64_t> here = setting_.replica.tensor_hashes();
  for (size_t i = 0; i < here.size() && facts.differed.empty(); ++i)
    if (tensor_hashes_[witness].size() == here.size() && tensor_hashes_[witness][i] != here[i])
      facts.differed = setting_.replica.model().names[i];
  setting_.world.log().warn("round {}: weights differ from most machines', first in {}: rebuilt from the log", round_, facts.differed);
  rebuild();
  facts.repaired = true;
  if (setting_.replica.hash() != right)
    throw Error(Error::Kind::broken_invariant,
                fmt::format("round {}: the log gives other weights on machine {} than on most", round_, setting_.machine));
}

RoundFacts OneByte::round() {
  CAIRN_CHECK(std::binary_search(members_.begin(), members_.end(), setting_.machine), "machine {} is no member", setting_.machine);
  RoundFacts facts{.round = round_};
  handle_waiting();
  if (!known_manifest(round_)) {  // otherwise the round was decided without this machine
    send_slopes(facts);
    handle_waiting();
  }
  await_manifest();
  complete_messages();
  finish_round(facts);
  return facts;
}

void OneByte::leave() { node_->leave(); }

}  // namespace cairn::sync
