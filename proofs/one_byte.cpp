// One byte: machines that exchange slopes of the loss along random directions, a byte each. Baselines: slopes as floats, one machine,
// gradients, weights moved in place.
#include "sync/one_byte/one_byte.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "memory/host_allocator.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/pass.h"
#include "proofs/curves_svg.h"
#include "proofs/hand_built.h"
#include "proofs/one_byte_model.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

using namespace std::chrono_literals;
using sync::SlopeCode;

float through(float slope) {
  return sync::decode_slopes(SlopeCode::log8, sync::encode_slopes(SlopeCode::log8, std::vector<float>{slope}).bytes, 1)[0];
}

// 1. The code, the directions, the estimate.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("code and directions");
  double worst = 0, unordered = 0, before = 0;
  for (double slope = 3.9e-4; slope < 2.6e3; slope *= 1.0007) {
    const double back = through(static_cast<float>(slope));
    worst = std::max(worst, std::abs(back - slope) / slope);
    if (back < before || through(static_cast<float>(-slope)) != static_cast<float>(-back)) ++unordered;
    before = back;
  }
  findings.at_most("1. one byte: largest relative error of a slope from 3.9e-4 to 2.6e3", 0, worst, 0.066);
  findings.at_most("1. slopes whose order or sign is not kept", 0, unordered, 0);

  const base::Random random = base::Random(5).for_name("w");
  std::vector<float> vector(4096);
  kernels::fill_direction(vector, random, 7, kernels::Noise::normal);
  findings.at_most("1. directions: written-down hash of 4,096 elements missed (found on Arm)", 0,
                   base::checksum(std::as_bytes(std::span(vector))) == 2022960012912820186u ? 0 : 1, 0);
  const auto replayed = [&](int threads, std::vector<int64_t> cuts) {
    const int had = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor weights = at::ones({100003});
    cuts.push_back(weights.numel());
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      kernels::replay(weights.slice(0, begin, end), std::vector<kernels::Direction>{{random, 0.3f}, {random.for_index(1), -2.0f}}, begin,
                      0.1f, 1, kernels::Noise::normal);
      begin = end;
    }
    at::set_num_threads(had);
    return weights;
  };
  const at::Tensor one = replayed(1, {});
  double differ = 0;
  for (const at::Tensor& other : {replayed(2, {}), replayed(8, {}), replayed(1, {1, 50001}), replayed(2, {33, 4095, 4097, 99999})})
    differ += at::equal(one, other) ? 0 : 1;
  findings.at_most("1. replays by 2 and 8 threads and of 2 and 5 slices that differ from one thread's", 0, differ, 0);

  log.info("20,000 slopes against the gradient");
  const SwappedClouds clouds(options.seed, {19, 10}, 32);
  sync::OneByteOptions plain;
  plain.eps = 1e-3;
  CloudReplica machine(clouds, plain, options.seed);
  std::vector<double> estimate(static_cast<size_t>(clouds.elements()), 0);
  const auto held_out = [&](const model::Weights& at, const sync::BatchKey&) {
    at::Tensor flat = at::empty({clouds.elements()});
    for (int32_t i = 0; i < static_cast<int32_t>(clouds.layout().pieces.size()); ++i)
      clouds.layout().view(flat, {i, 1}).copy_(at.get({i, 1}));
    return clouds.held_out_loss(flat);
  };
  const int64_t draws = 20000;
  for (int64_t k = 0; k < draws; ++k) {
    const double slope = through(machine.replica.measure(held_out, 0, 0, k).slope);
    size_t next = 0;
    for (size_t i = 0; i < clouds.layout().pieces.size(); ++i) {
      std::vector<float> z(static_cast<size_t>(clouds.layout().pieces[i].elements));
      kernels::fill_direction(z, machine.replica.direction(0, 0, k, static_cast<int64_t>(i)), 0, kernels::Noise::normal);
      for (const float x : z) estimate[next++] += slope * x;
    }
  }
  const at::Tensor gradient = clouds.gradient(clouds.start()).contiguous();
  double dot = 0, ours = 0, theirs = 0;
  for (size_t i = 0; i < estimate.size(); ++i) {
    const double g = gradient.const_data_ptr<float>()[i];
    dot += g * estimate[i], ours += estimate[i] * estimate[i], theirs += g * g;
  }
  findings.at_least(
      fmt::format("1. mean of slope times direction over {} draws, {} parameters: cosine with the gradient", draws, clouds.elements()), 1,
      dot / std::sqrt(ours * theirs), 0.95);
}

struct Tuned {
  double start = 0, end = 0;
  std::vector<std::pair<double, double>> course = {};
};

// Rounds of several machines over one copy of the weights, which is what they all hold.
Tuned tune(const SwappedClouds& clouds, const sync::OneByteOptions& options, uint32_t machines, uint32_t rounds, float rate, uint64_t run) {
  CloudReplica all(clouds, options, run);
  Tuned tuned{.start = clouds.held_out_loss(all.flat)};
  const auto loss = [&](const model::Weights& at, const sync::BatchKey& batch) { return clouds.loss(at, batch); };
  for (uint32_t round = 0; round < rounds; ++round) {
    sync::RoundRecord record{{.round = round, .rate = rate}, {}};
    for (uint32_t machine = 0; machine < machines; ++machine) {
      std::vector<float> slopes;
      for (int64_t k = 0; k < options.samples_per_round; ++k) slopes.push_back(all.replica.measure(loss, round, machine, k).slope);
      record.messages.push_back({.run = run,
                                 .round = round,
                                 .machine = machine,
                                 .slopes = static_cast<uint16_t>(slopes.size()),
                                 .codes = sync::encode_slopes(all.replica.code(), slopes).bytes});
    }
    all.replica.apply(record);
    if (round % 50 == 0) tuned.course.emplace_back(round, clouds.held_out_loss(all.flat));
  }
  tuned.end = clouds.held_out_loss(all.flat);
  return tuned;
}

// 2. The pilot: 6,858 parameters, rounds of 8 machines with 2 slopes each; 2,000 of them in the long form.
void quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  const SwappedClouds clouds(options.seed, {31, 64, 64, 10}, 32);
  const uint32_t rounds = options.full ? 2000 : 800;
  CurvesPicture picture{.title = "Two labels swapped, 6,858 parameters: learned from slopes", .across = "rounds", .up = "held-out loss"};
  const auto run = [&](const std::string& code, uint32_t machines) {
    sync::OneByteOptions how;
    how.samples_per_round = 2, how.code = base::parse_enum(sync::kSlopeCodeNames, "code", code);
    const Tuned tuned = tune(clouds, how, machines, rounds, 1e-3f, options.seed);
    log.info("{} machines, {}: loss {:.4f} -> {:.4f}", machines, code, tuned.start, tuned.end);
    picture.curves.push_back({fmt::format("{} x 2 slopes, {}", machines, code), curve_colour(picture.curves.size()), tuned.course});
    return tuned;
  };
  const Tuned bytes = run("log8", 8), floats = run("fp32", 8);
  if (options.full) run("sign", 8);
  findings.at_most(fmt::format("2. {} rounds, 8 machines: loss with bytes against floats, off by", rounds), 0,
                   std::abs(bytes.end / floats.end - 1), 0.01);
  findings.at_most("2. loss with bytes, of that before", 1, bytes.end / bytes.start, 0.85);
  findings.at_most("2. loss with floats, of that before", 1, floats.end / floats.start, 0.85);
  // At one rate, small enough for both, they move as far on average, and what more slopes buy is less noise: so each has its best rate.
  const auto best = [&](uint32_t machines) {
    double least = bytes.start;
    for (const float rate : {1e-3f, 4e-3f, 1.6e-2f}) {
      sync::OneByteOptions how;
      how.samples_per_round = 2;
      const double loss = tune(clouds, how, machines, 300, rate, options.seed).end;
      log.info("{} machines, 300 rounds, rate {:g}: loss {:.4f}", machines, rate, loss);
      if (loss < least) least = loss;
    }
    return least;
  };
  const double alone = best(1), together = best(8);
  findings.at_most("2. 300 rounds, each at the best of three rates: loss of 8 machines (baseline: of 1)", alone, together, alone);
  write_curves(options.pictures, "one-byte-loss", picture);
}

struct Crowd {
  int ranks = 4;
  uint32_t founders = 4;
  uint32_t rounds = 500;
  std::vector<comm::Fault> faults = {};
  std::chrono::nanoseconds joins_after{};  // of the ranks that are no founders
  sync::OneByteOptions options = {};
  float rate = 1e-2f;
};
struct Crowded {
  std::vector<uint64_t> hashes;  // of those that live
  double loss = 0;
  comm::Ledger ledger;
  int64_t slopes_messages = 0;  // messages expected between members: one message to each other member in each round
  double joined_at = 0;         // the last round at which somebody joined
  std::vector<bool> fired;
};

// Machines with their own mailboxes on the virtual network. A round's measuring takes ten virtual milliseconds.
Crowded gather(const SwappedClouds& clouds, const Crowd& crowd, uint64_t run) {
  Crowded result;
  std::mutex mutex;
  comm::LocalOptions local;
  local.faults = crowd.faults;
  comm::LocalNetwork network(crowd.ranks, local);
  const auto errors = network.run([&](comm::World& world) {
    CloudReplica copy(clouds, crowd.options, run);
    comm::Mailbox mailbox(world);
    const auto machine = static_cast<uint32_t>(world.rank());
    sync::OneByte member({.world = world,
                          .mailbox = mailbox,
                          .replica = copy.replica,
                          .machine = machine,
                          .loss = [&](const model::Weights& at, const sync::BatchKey& batch) { return clouds.loss(at, batch); },
                          .rate = [&](uint32_t) { return crowd.rate; },
                          .load_base = [&] { copy.flat.copy_(clouds.start()); }});
    double joined = 0;
    if (machine < crowd.founders) {
      std::vector<uint32_t> founders;
      for (uint32_t i = 0; i < crowd.founders; ++i) founders.push_back(i);
      member.start(founders);
    } else {
      world.timer(world.clock().now() + crowd.joins_after).wait();
      member.join(600s);
      joined = member.next_round();
    }
    int64_t sent = 0;
    while (member.next_round() < crowd.rounds) {
      sent += static_cast<int64_t>(member.members().size()) - 1;
      member.round();
      world.timer(world.clock().now() + 10ms).wait();
    }
    const std::lock_guard lock(mutex);
    result.hashes.push_back(copy.replica.hash());
    result.loss = clouds.held_out_loss(copy.flat);
    result.slopes_messages += sent;
    result.joined_at = std::max(result.joined_at, joined);
  });
  for (const std::exception_ptr& error : errors) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const comm::Killed&) {
    }
  }
  result.ledger = network.ledger();
  result.fired = network.faults_fired();
  return result;
}

double different(const std::vector<uint64_t>& hashes) {
  return static_cast<double>(std::count_if(hashes.begin(), hashes.end(), [&](uint64_t hash) { return hash != hashes.front(); }));
}

// 1 and 3. Four machines, 500 rounds; then two with ten million parameters, against an all-reduce of its gradient.
void wire(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("four machines, 500 rounds");
  const SwappedClouds clouds(options.seed, {31, 16, 10}, 32);
  Crowd crowd;
  crowd.options.samples_per_round = 4;
  const Crowded four = gather(clouds, crowd, options.seed);
  findings.at_most("1. four machines, 500 rounds: machines whose hash differs", 0, different(four.hashes), 0);
  findings.at_least("1. machines that were compared", 0, static_cast<double>(four.hashes.size()), 4);
  const auto bytes = static_cast<double>(four.ledger.total(comm::Purpose::gradient).bytes);
  findings.at_most("3. bytes of slopes for each machine, round and peer, 4 slopes each", 4.0 * static_cast<double>(clouds.elements()),
                   bytes / static_cast<double>(four.slopes_messages), 26 + 4);
  log.info("with what leaders say, hashes, and names and headers of all messages: {:.1f} bytes for each machine, round and peer",
           static_cast<double>(four.ledger.total().bytes) / static_cast<double>(four.slopes_messages));

  log.info("two machines, ten million parameters, one round");
  const SwappedClouds large(options.seed, {31, 3150, 3150, 10}, 8, 0);
  crowd.ranks = 2, crowd.founders = 2, crowd.rounds = 1, crowd.options.samples_per_round = 1, crowd.rate = 1e-4f;
  const Crowded two = gather(large, crowd, options.seed);
  comm::LocalNetwork network(2);
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         const at::Tensor gradient = at::zeros({large.elements()});
         world.everyone().all_reduce(gradient, comm::Reduce::sum, {comm::Purpose::gradient, "gradient"}).wait_host();
       }))
    if (error) std::rethrow_exception(error);
  const auto reduced = static_cast<double>(network.ledger().total(comm::Purpose::gradient).bytes);
  findings.at_least(fmt::format("3. {:.1f} million parameters: bytes of an all-reduce over bytes of a round with all that is said",
                                1e-6 * static_cast<double>(large.elements())),
                    1, reduced / static_cast<double>(two.ledger.total().bytes), 1e4);
}

// 4. Two of six are killed (the leader first), two come later.
void churn(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("machines that come and go");
  const SwappedClouds clouds(options.seed, {31, 16, 10}, 32);
  Crowd crowd{.ranks = 6, .founders = 6, .rounds = 400};
  crowd.options.samples_per_round = 4, crowd.options.round_timeout_s = 1;
  const Crowded still = gather(clouds, crowd, options.seed);
  crowd.ranks = 8, crowd.joins_after = 2s;
  crowd.faults = {{.kind = comm::Fault::Kind::kill, .rank = 0, .at = 700ms}, {.kind = comm::Fault::Kind::kill, .rank = 4, .at = 1300ms}};
  const Crowded moving = gather(clouds, crowd, options.seed);
  log.info("loss {:.4f} before, {:.4f} with six all along, {:.4f} with two killed and two more from round {} on",
           clouds.held_out_loss(clouds.start()), still.loss, moving.loss, moving.joined_at);
  findings.at_least("4. machines killed", 0, static_cast<double>(std::count(moving.fired.begin(), moving.fired.end(), true)), 2);
  findings.at_least("4. round at which the last newcomer had replayed base and log", 0, moving.joined_at, 50);
  findings.at_least("4. machines at the end", 6, static_cast<double>(moving.hashes.size()), 6);
  findings.at_most("4. of them, those whose hash differs", 0, different(moving.hashes), 0);
  findings.at_most("4. loss against six machines all along, off by", 0, std::abs(moving.loss / still.loss - 1), 0.03);
}

at::Tensor normal_bf16(uint64_t seed) {
  at::Tensor x = at::empty({5000});
  kernels::fill_normal(x, base::Random(seed).for_name("bf16"), 0, 0.05);
  return x.to(at::kBFloat16);
}

// 5 and 6. A decoder in bf16, and what it takes in memory.
void forward_only(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("a decoder: restoring, and memory");
  model::DecoderShape shape;
  shape.vocab = 1024, shape.embed = 192, shape.layers = 6, shape.heads = 6, shape.kv_heads = 2, shape.head_dim = 32, shape.mlp = 512;
  shape.length = 32, shape.tied = true;
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape);
  const std::unique_ptr<model::Objective> objective = model::make_next_token();
  const mesh::FlatLayout layout = decoder->layout();
  at::Tensor flat = at::empty({layout.elements});
  model::initialize_parameters(*decoder, flat, base::Random(options.seed));
  const mesh::Batch batch = random_tokens({options.seed, 1, 4, shape.length, shape.vocab});
  const mesh::Axes axes;
  model::Buffers buffers = decoder->make_buffers(flat.options());
  const sync::LossAt loss = [&](const model::Weights& at, const sync::BatchKey&) {
    const model::Losses losses =
        parallel::execute({.model = *decoder, .at = at, .buffers = buffers, .axes = axes, .batch = batch, .objective = *objective});
    return losses.sum.item<double>() / losses.count.item<double>();
  };
  sync::OneByteOptions how;
  how.samples_per_round = 4;
  const auto replica_of = [&](const model::Weights& weights) {
    sync::OneByteReplica::Model all{weights, {}, std::vector<bool>(layout.pieces.size(), true)};
    for (const auto& piece : layout.pieces) all.names.push_back(piece.name);
    return sync::OneByteReplica(how, options.seed, all);
  };
  {
    const model::FlatWeights weights(layout, flat);
    sync::OneByteReplica replica = replica_of(weights);
    const at::NoGradGuard no_gradients;
    loss(weights, {});
    memory::reset_host_peak();
    loss(weights, {});
    const auto evaluating = static_cast<double>(memory::host_memory().peak_bytes);
    memory::reset_host_peak();
    sync::RoundRecord record{{.round = 0, .rate = 1e-6f}, {}};
    std::vector<float> slopes;
    for (int64_t k = 0; k < how.samples_per_round; ++k) slopes.push_back(replica.measure(loss, 0, 0, k).slope);
    record.messages.push_back({.slopes = 4, .codes = sync::encode_slopes(SlopeCode::log8, slopes).bytes});
    const uint64_t before = replica.hash();
    replica.apply(record);
    findings.at_least("6. weights that a round moved", 0, replica.hash() != before ? 1 : 0, 1);
    findings.at_most(fmt::format("6. {:.1f} million parameters: most bytes of tensors while training, of those while evaluating",
                                 1e-6 * static_cast<double>(layout.elements)),
                     1, static_cast<double>(memory::host_memory().peak_bytes) / evaluating, 1.2);
  }
  // A smaller network for a thousand evaluations.
  const at::Tensor small = normal_bf16(options.seed);
  mesh::FlatLayout one;
  one.append("w", {small.numel()});
  const model::FlatWeights weights(one, small);
  const sync::OneByteReplica replica(how, options.seed, {weights, {"w"}, {true}});
  const uint64_t before = replica.hash();
  const sync::LossAt any = [](const model::Weights& at, const sync::BatchKey&) {
    return at.get({0, 1}).to(at::kDouble).square().sum().item<double>();
  };
  for (int64_t k = 0; k < 1000; ++k) replica.measure(any, 0, 0, k);
  const double dirty_ours = replica.hash() == before ? 0 : 1;
  const at::Tensor in_place = small.clone();
  for (int64_t k = 0; k < 1000; ++k)
    for (const float way : {1e-3f, -2e-3f, 1e-3f})
      kernels::perturb(in_place, in_place, {replica.direction(0, 0, k, 0), way}, 0, kernels::Noise::normal);
  const double dirty = static_cast<double>((in_place != small).sum().item<int64_t>()) / static_cast<double>(small.numel());
  findings.at_most("5. bf16 weights after 1,000 evaluations: changed (baseline: share that adding and taking away changes)", dirty,
                   dirty_ours, 0);
}

}  // namespace

void prove_one_byte(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  quality(options, findings, log);
  wire(options, findings, log);
  churn(options, findings, log);
  forward_only(options, findings, log);
}

}  // namespace cairn::study
