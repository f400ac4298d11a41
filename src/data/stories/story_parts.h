// The words and plots that the built-in stories are made of.
#pragma once
#include <span>
#include <string_view>

#include "data/stories/grammar.h"

namespace cairn::data {

// A character with a name and pronouns.
struct Person {
  std::string_view name;
  std::string_view kind;  // "girl", "fox"
  bool she;
};

// Words for one story, chosen once and used throughout. Children and animals do not meet as friends: each has its own list.
std::span<const Person> children();
std::span<const Person> animals();
std::span<const Person> elders_of_children();
std::span<const Person> elders_of_animals();
std::span<const std::string_view> colors();
std::span<const std::string_view> toys();
std::span<const std::string_view> treats();
std::span<const std::string_view> fruits();
std::span<const std::string_view> flowers();
std::span<const std::string_view> critters();
std::span<const std::string_view> waters();
std::span<const std::string_view> numbers();

// The slots that these words fill, as plots write them:
//   hero   {N} {he} {He} {his} {His} {him} {kind}       friend {F} {fhe} {fHe} {fhis} {fHis} {fhim} {fkind}
//   elder  {E} {ehe} {eHe} {ehis} {ehim}                words  {color} {toy} {treat} {fruit} {flower} {critter} {water} {number}
std::span<const std::string_view> story_slots();

// Sentences that many stories share: how one begins, how one ends.
std::span<const Grammar::Rule> story_rules();

// One rule for each plot: a wish, what stands in its way, what comes of it.
std::span<const Grammar::Rule> story_plots();

}  // namespace cairn::data
