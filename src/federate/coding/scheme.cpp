#include "federate/coding/scheme.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "base/check.h"
#include "federate/coding/schemes.h"

namespace cairn::federate {
namespace {

void check_parameters(const SchemeSpec& spec, int workers) {
  if (spec.kind == SchemeKind::gc && spec.s >= workers)
    base::fail_input("study.s = {}: {} workers, and at least one must not be late: use at most {}", spec.s, workers, workers - 1);
  if (spec.kind != SchemeKind::srsgc && spec.kind != SchemeKind::msgc) return;
  if (spec.b < 1) base::fail_input("study.b = {}: late workers stay late for at least one round: use 1 or more", spec.b);
  if (spec.b >= spec.w) base::fail_input("study.b = {}: must be below study.w = {}: use study.w = {}", spec.b, spec.w, spec.b + 1);
  if (spec.lambda < 0 || spec.lambda > workers)
    base::fail_input("study.lambda = {}: there are {} workers: use 0 to {}", spec.lambda, workers, workers);
  if (spec.kind == SchemeKind::srsgc && (spec.w - 1) % spec.b != 0)
    base::fail_input("study.w = {}: srsgc needs a multiple of study.b = {} plus 1: use {}", spec.w, spec.b,
                     (spec.w - 1) / spec.b * spec.b + 1);
}

// ceil(B lambda / (W - 1 + B))
int repeated_s(const SchemeSpec& spec) { return (spec.b * spec.lambda + spec.w - 2 + spec.b) / (spec.w - 1 + spec.b); }

}  // namespace

int SchemeSpec::delay() const { return kind == SchemeKind::srsgc ? b : kind == SchemeKind::msgc ? w - 2 + b : 0; }

std::string SchemeSpec::text() const {
  if (kind == SchemeKind::none) return "none";
  if (kind == SchemeKind::gc) return fmt::format("gc({})", s);
  return fmt::format("{}({},{},{})", name_of(kind), b, w, lambda);
}

double load_of(const SchemeSpec& spec, int workers) {
  const double n = workers;
  if (spec.kind == SchemeKind::none) return 1 / n;
  if (spec.kind == SchemeKind::gc) return (spec.s + 1) / n;
  if (spec.kind == SchemeKind::srsgc) return (repeated_s(spec) + 1) / n;
  const double slots = spec.w - 1 + spec.b;
  if (spec.lambda == workers) return slots / (n * (spec.w - 1));
  return (spec.lambda + 1) * slots / (n * (spec.b + (spec.w - 1) * (spec.lambda + 1)));
}

const sync::GradientCode& CodeCache::find(sync::CodeKind kind, int workers, int stragglers, uint64_t seed, const std::string& key) {
  const auto name = std::tuple(kind, workers, stragglers, seed);
  auto found = codes_.find(name);
  if (found == codes_.end()) {
    try {
      found = codes_.emplace(name, sync::GradientCode(kind, workers, stragglers, seed, key)).first;
    } catch (const Error& error) {
      found = codes_.emplace(name, error).first;
    }
  }
  if (const auto* error = std::get_if<Error>(&found->second)) throw Error(*error);
  return std::get<sync::GradientCode>(found->second);
}

std::unique_ptr<Scheme> make_scheme(const SchemeSpec& spec, int workers, int64_t jobs, sync::CodeKind code, uint64_t seed,
                                    CodeCache* codes) {
  CAIRN_CHECK(workers >= 1 && jobs >= 0, "{} workers, {} jobs", workers, jobs);
  check_parameters(spec, workers);
  CodeCache own;
  if (!codes) codes = &own;
  switch (spec.kind) {
    case SchemeKind::none:
      return make_repeating({0, 0, jobs}, codes->find(sync::CodeKind::automatic, workers, 0, seed, "study.s"));
    case SchemeKind::gc:
      return make_repeating({spec.s, 0, jobs}, codes->find(code, workers, spec.s, seed, "study.s"));
    case SchemeKind::srsgc:
      return make_repeating({repeated_s(spec), spec.b, jobs}, codes->find(code, workers, repeated_s(spec), seed, "study.lambda"));
    case SchemeKind::msgc:
      break;
  }
  std::unique_ptr<sync::GradientCode> rest;
  if (spec.lambda < workers) rest = std::make_unique<sync::GradientCode>(codes->find(code, workers, spec.lambda, seed, "study.lambda"));
  return make_multiplexed({spec.b, spec.w, spec.lambda, workers, jobs}, std::move(rest));
}

}  // namespace cairn::federate
