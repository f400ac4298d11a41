// MASHA: saddle points over devices that send compressed differences. Baselines: extragradient with whole messages, and with messages that
// are compressed as they are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/masha_network.h"
#include "proofs/masha_problems.h"
#include "study/claims.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

constexpr int kDevices = 10;
constexpr double kPlainFactor = 0.7;  // of 1/L: extragradient's step

sync::MashaOptions random_places(double density, double step) {
  sync::MashaOptions options;
  options.up = {.kind = "randk", .density = density};
  options.step = step;
  return options;
}

sync::MashaOptions largest(double density, double step) {
  sync::MashaOptions options;
  options.kind = "masha2";
  options.up = options.down = {.kind = "topk", .density = density};
  options.step = step;
  return options;
}

double owed_step(double refresh, double constant) { return 0.4 * std::sqrt(refresh) / constant; }  // masha2

void on_devices(int devices, const std::function<void(comm::World&)>& body) {
  for (const std::exception_ptr& error : comm::LocalNetwork(devices).run(body))
    if (error) std::rethrow_exception(error);
}

at::Tensor mean_value(const std::vector<std::unique_ptr<sync::VariationalProblem>>& devices, const at::Tensor& point) {
  at::Tensor sum = at::zeros_like(point);
  for (const auto& device : devices) sum += sync::value_at(*device, point, {});
  return sum / static_cast<double>(devices.size());
}

std::vector<std::unique_ptr<sync::VariationalProblem>> all_devices(const Saddle& saddle) {
  std::vector<std::unique_ptr<sync::VariationalProblem>> all;
  for (int device = 0; device < kDevices; ++device) all.push_back(make_saddle(saddle, device));
  return all;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

// 1. With everything travelling, the plain recurrence in one process.
double off_one_process(const Saddle& saddle, const std::string& kind, double step) {
  constexpr int kIterations = 60;
  constexpr double kRefresh = 0.2;
  const base::Random shared(saddle.seed);
  const auto devices = all_devices(saddle);
  at::Tensor z = start_of(saddle), w = z, f = mean_value(devices, w);
  for (uint64_t j = 0; j < kIterations; ++j) {
    const at::Tensor ahead = z * (1 - kRefresh) + w * kRefresh - f * step;
    z = ahead - (mean_value(devices, ahead) - f) * step;
    if (shared.for_purpose("masha").for_purpose("refresh").uniform(j) < kRefresh) w = z, f = mean_value(devices, w);
  }
  double worst = 0;
  std::mutex mutex;
  on_devices(kDevices, [&](comm::World& world) {
    sync::MashaOptions options;
    options.kind = kind, options.step = step, options.refresh = kRefresh, options.up = {};
    const auto problem = make_saddle(saddle, world.rank());
    sync::Masha masha(options, {*problem, world.everyone(), shared}, start_of(saddle));
    for (int j = 0; j < kIterations; ++j) masha.iterate();
    const std::lock_guard lock(mutex);
    worst = std::max(worst, relative_difference(masha.point(), z));
  });
  return worst;
}

// 1. MASHA2: the point minus the residual moves by the full mean: compression changes the point by exactly the residual.
double residual_invariant(const Saddle& saddle, double step) {
  constexpr int kIterations = 50;
  const auto devices = all_devices(saddle);
  std::vector<at::Tensor> residual(kDevices), range_residual(kDevices);
  double worst = 0;
  on_devices(kDevices, [&](comm::World& world) {
    const sync::MashaOptions options = largest(0.1, step);
    const auto problem = make_saddle(saddle, world.rank());
    sync::Masha masha(options, {*problem, world.everyone(), base::Random(saddle.seed)}, start_of(saddle));
    const auto rank = static_cast<size_t>(world.rank());
    const auto sum_of_residuals = [&] {
      for (const mesh::NamedTensor& tensor : masha.state()) {
        if (tensor.name.ends_with(".owed")) residual[rank] = tensor.tensor.clone();
        if (tensor.name.ends_with(".range_owed")) range_residual[rank] = tensor.tensor.clone();
      }
      world.everyone().barrier("residual").wait_host();
      at::Tensor sum = at::zeros({2 * saddle.side});
      for (const at::Tensor& one : residual) sum += one / static_cast<double>(kDevices);
      int64_t next = 0;
      for (const at::Tensor& one : range_residual) sum.slice(0, next, next + one.numel()).add_(one), next += one.numel();
      world.everyone().barrier("residual was read").wait_host();
      return sum;
    };
    at::Tensor before = sum_of_residuals();
    for (int j = 0; j < kIterations; ++j) {
      const at::Tensor ahead = masha.point() * 0.9 + masha.reference() * 0.1 - masha.mean() * step;
      const at::Tensor whole = ahead - (mean_value(devices, ahead) - masha.mean()) * step;
      masha.iterate();
      const at::Tensor after = sum_of_residuals();
      if (world.rank() == 0) worst = std::max(worst, relative_difference(masha.point() - after, whole - before));
      before = after;
    }
  });
  return worst;
}

void exactness(const Saddle& saddle, double constant, Findings& findings, base::Log& log) {
  log.info("exactness");
  for (const char* kind : {"masha1", "masha2"})
    findings.at_most(fmt::format("1. {}, everything travels, 60 iterations on 10 devices: relative difference to one process", kind), 0,
                     off_one_process(saddle, kind, 0.2 / constant), 1e-6);
  findings.at_most("1. masha2 top-10%: point minus the residual against the recurrence without compression, 50 iterations", 0,
                   residual_invariant(saddle, owed_step(0.1, constant)), 1e-5);
}

// 2 and 3. The pilot's saddle.
void convergence(const ProofOptions& options, const Saddle& saddle, double constant, Findings& findings, base::Log& log) {
  const SaddleRun base{.saddle = saddle, .devices = kDevices};
  const auto run = [&](const std::string& what, SaddleRun how, auto solver) {
    how.solver = solver;
    const Solved solved = solve(how);
    log.info("{}: {} after {} iterations, |F| down to {:.2g}, {:.0f} floats up and {:.0f} down a device", what,
             solved.reached ? "solved" : "not solved", solved.iterations, solved.least, solved.up / 4 * kDevices / (kDevices - 1),
             solved.down / 4 * kDevices / (kDevices - 1));
    return solved;
  };
  const auto step1 = [&](double density, double down = 1) {
    return down < 1 ? masha_step(2.0, density, constant, density, kDevices, down) : masha_step(1.2, density, constant, density, kDevices);
  };
  const auto both = [&](double density) {
    sync::MashaOptions two_way = random_places(density, step1(density, density));
    two_way.down = {.kind = "randk", .density = density};
    return two_way;
  };
  const Solved plain = run("extragradient", base, extragradient(kPlainFactor / constant));
  struct Case {
    std::string what;
    sync::MashaOptions options;
  };
  std::vector<Case> cases{{"masha1 rand-30%", random_places(0.3, step1(0.3))},
                          {"masha1 rand-10%", random_places(0.1, step1(0.1))},
                          {"masha1 rand-30% both ways", both(0.3)},
                          {"masha2 top-30% both ways", largest(0.3, owed_step(0.3, constant))},
                          {"masha2 top-10% both ways", largest(0.1, owed_step(0.1, constant))}};
  if (options.full) cases.push_back({"masha1 rand-10% both ways", both(0.1)});
  std::vector<Solved> solved;
  CurvesPicture picture{.title = "Bilinear saddle, 10 devices: residual over bytes sent",
                        .across = "bytes that a device sent",
                        .up = "|F(z)| / |F(z0)|",
                        .logarithmic_across = true,
                        .logarithmic_up = true};
  picture.curves.push_back({"extragradient", curve_colour(0), plain.course});
  for (const Case& one : cases) {
    solved.push_back(run(one.what, base, masha(one.options, options.seed)));
    picture.curves.push_back({one.what, curve_colour(picture.curves.size()), solved.back().course});
    findings.at_most(fmt::format("2. {}: |F| reached, of |F(z0)|", one.what), 1, solved.back().least, 1e-6);
  }
  double differ = 0, control = 0;
  for (const Solved& one : solved) differ += one.same_bits ? 0 : 1;
  for (size_t i = 0; i < 3; ++i) control += static_cast<double>(solved[i].control_bytes);
  findings.at_most("1. runs whose devices end at different bits", 0, differ, 0);
  findings.at_most("1. masha1: bytes that travelled to agree on coins and places", 0, control, 0);
  for (const double density : {0.3, 0.1}) {
    // As many messages as masha1 sent in its iterations and refreshes, at the better of two steps.
    SaddleRun naive = base;
    const Solved& same = solved[density == 0.3 ? 0 : 1];
    naive.iterations_most =
        static_cast<int64_t>(same.up / 4 * kDevices / (kDevices - 1) / (2 * density * 2 * static_cast<double>(saddle.side)));
    Solved best;
    for (const double factor : {0.3, 0.03}) {
      const Solved one = run(fmt::format("naive rand-{:.0f}%, step {}/L", density * 100, factor), naive,
                             naive_extragradient(factor / constant, density, options.seed));
      if (one.least < best.least) best = one;
    }
    picture.curves.push_back({fmt::format("naive rand-{:.0f}%", density * 100), curve_colour(picture.curves.size()), best.course});
    findings.at_least(
        fmt::format("2. rand-{:.0f}% of whole values, as many bits as masha1, the better of two steps: |F| reached", density * 100),
        same.least, best.least, 1e-2);
  }
  findings.at_most("3. masha1 rand-10%: bytes up, of extragradient's", 1, solved[1].up / plain.up, 0.6);
  findings.at_most("3. masha1 rand-30% both ways: bytes up, of extragradient's", 1, solved[2].up / plain.up, 0.8);
  findings.at_most("3. masha1 rand-30% both ways: bytes down, of extragradient's", 1, solved[2].down / plain.down, 0.8);
  write_curves(options.pictures, "masha-residual", picture);
}

// 4. Four devices, links of 1 MB/s, 200,000 elements.
void shaped(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Saddle saddle{.seed = options.seed, .side = 100000, .per_row = 4, .per_row_own = 2, .regular = 0.1};
  const double constant = lipschitz(saddle, 1);
  SaddleRun run{.saddle = saddle, .devices = 4, .until = 1e-4, .iterations_most = 3000};
  run.link.bytes_per_s = 1e6;
  const auto seconds = [&](const std::string& what, auto solver) {
    run.solver = solver;
    const Solved solved = solve(run);
    log.info("{}: {} after {} iterations, {:.0f} s", what, solved.reached ? "solved" : "not solved", solved.iterations, solved.seconds);
    return solved.reached ? solved.seconds : std::numeric_limits<double>::infinity();
  };
  constexpr double kRefresh = 0.5, kDensity = 0.1;
  sync::MashaOptions thin = random_places(kDensity, masha_step(1.6, kRefresh, constant, kDensity, 4));
  thin.refresh = kRefresh;
  const double plain = seconds("extragradient, step 0.7/L", extragradient(kPlainFactor / constant));
  const double eager = seconds("extragradient, step 0.9/L", extragradient(0.9 / constant));
  const double masha1 = seconds("masha1 rand-10%", masha(thin, options.seed));
  findings.at_most("4. d=200,000, 4 devices, links of 1 MB/s: virtual seconds to 1e-4, of extragradient's", 1, masha1 / plain, 0.7);
  findings.at_most("4. of extragradient's at 0.9/L, where it is about to diverge", 1, masha1 / eager, 1);
}

}  // namespace

void prove_masha(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Saddle saddle{.seed = options.seed};
  const double constant = lipschitz(saddle, kDevices);
  log.info("x and y of 50 elements, 10 devices, L = {:.3f}", constant);
  exactness(saddle, constant, findings, log);
  convergence(options, saddle, constant, findings, log);
  shaped(options, findings, log);
  masha_networks(options, findings, log);
}

}  // namespace cairn::study
