#pragma once
#include <any>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/recipe.h"
#include "base/schema.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {

// A group of keys in [sync.island] that one rule or several have: how a recipe is read, what the reference page shows, what islands
// compare.
struct RuleKeys {
  base::Section section;
  std::function<void(base::Recipe&, SyncOptions&)> read;
  std::function<std::vector<base::Setting>(const SyncOptions&)> values;  // in the order of the section; null: islands may differ
};

// Keys that fill a member of SyncOptions.
template <typename T>
RuleKeys keys_in(const base::Schema<T>& schema, T SyncOptions::*member) {
  return {schema.section(),
          [schema, member](base::Recipe& recipe, SyncOptions& options) { options.*member = recipe.read(schema, options.*member); },
          [schema, member](const SyncOptions& options) { return schema.values_of(options.*member); }};
}

// Keys of a struct that only the rule itself knows. Its `make` gets them back with own_options<T>.
template <typename T>
const T& own_options(const SyncOptions& options) {
  static const T defaults{};
  const T* own = std::any_cast<T>(&options.own);
  return own ? *own : defaults;
}
template <typename T>
RuleKeys own_keys(const base::Schema<T>& schema) {
  return {schema.section(), [schema](base::Recipe& recipe, SyncOptions& options) { options.own = recipe.read(schema); },
          [schema](const SyncOptions& options) { return schema.values_of(own_options<T>(options)); }};
}

// The keys of the exchange between islands (islands/messenger.h): ExchangeOptions without `keep`, and `keep` for wires that drop values.
RuleKeys exchange_keys();
RuleKeys sparse_keys();

// One rule, as its line in rules.cpp has it.
struct SyncRule {
  using MakeKeys = RuleKeys (*)();

  std::string_view name;  // sync.<axis>.kind
  std::unique_ptr<Sync> (*make)(const SyncOptions& options, Replica replica);
  std::vector<MakeKeys> keys = {};  // in the order in which they are read
  SyncNeeds needs = {};
};

const std::vector<SyncRule>& rules();
const SyncRule& rule_named(std::string_view kind);  // refuses an unknown name and names the nearest

}  // namespace cairn::sync
