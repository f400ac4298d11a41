#include <array>

#include "data/stories/story_parts.h"

namespace cairn::data {
namespace {

constexpr std::array kChildren = std::to_array<Person>({
    {"Lily", "girl", true}, {"Mia", "girl", true},  {"Anna", "girl", true}, {"Rosie", "girl", true}, {"Ella", "girl", true},
    {"Nora", "girl", true}, {"Lucy", "girl", true}, {"Ruby", "girl", true}, {"Clara", "girl", true}, {"Maya", "girl", true},
    {"Zoe", "girl", true},  {"Emma", "girl", true}, {"Tom", "boy", false},  {"Ben", "boy", false},   {"Sam", "boy", false},
    {"Max", "boy", false},  {"Leo", "boy", false},  {"Finn", "boy", false}, {"Jack", "boy", false},  {"Tim", "boy", false},
    {"Hugo", "boy", false}, {"Noah", "boy", false}, {"Adam", "boy", false}, {"Theo", "boy", false},
});

constexpr std::array kAnimals = std::to_array<Person>({
    {"Pip", "mouse", false},     {"Dot", "mouse", true},       {"Clover", "rabbit", true},     {"Thumper", "rabbit", false},
    {"Rusty", "fox", false},     {"Ember", "fox", true},       {"Bruno", "bear", false},       {"Honey", "bear", true},
    {"Hazel", "squirrel", true}, {"Nutty", "squirrel", false}, {"Prickle", "hedgehog", false}, {"Bramble", "hedgehog", true},
    {"Puddle", "duck", true},    {"Waddle", "duck", false},    {"Hoppy", "frog", false},       {"Lila", "frog", true},
    {"Whiskers", "cat", false},  {"Misty", "cat", true},       {"Biscuit", "puppy", false},    {"Daisy", "puppy", true},
});

constexpr std::array kElders = std::to_array<Person>({
    {"Grandma", "", true},
    {"Grandpa", "", false},
    {"Mom", "", true},
    {"Dad", "", false},
    {"Aunt May", "", true},
    {"Uncle Joe", "", false},
});

constexpr std::array kAnimalElders = std::to_array<Person>({
    {"Mister Owl", "", false},
    {"Granny Badger", "", true},
    {"Miss Goose", "", true},
    {"Mother", "", true},
    {"Father", "", false},
    {"Old Turtle", "", false},
});

using Words = std::string_view;
constexpr std::array kColors = std::to_array<Words>({"red", "blue", "green", "yellow", "white", "purple"});
constexpr std::array kToys = std::to_array<Words>({"ball", "drum", "hat", "scarf", "bell", "book", "boat", "cart", "basket", "whistle"});
constexpr std::array kTreats = std::to_array<Words>({
    "berry cake",
    "apple pie",
    "carrot cake",
    "warm bread",
    "plum cake",
    "honey cake",
    "pumpkin pie",
    "nut bread",
});
constexpr std::array kFruits = std::to_array<Words>({"apples", "pears", "berries", "plums", "cherries", "nuts"});
constexpr std::array kFlowers = std::to_array<Words>({"rose", "tulip", "daisy", "sunflower", "poppy"});
constexpr std::array kCritters = std::to_array<Words>({"bird", "butterfly", "snail", "turtle", "ladybug", "crow", "bee", "lamb"});
constexpr std::array kWaters = std::to_array<Words>({"river", "lake", "pond", "stream"});
constexpr std::array kNumbers = std::to_array<Words>({"two", "three", "four", "five", "six", "seven"});

constexpr std::array kSlots = std::to_array<Words>({
    "N", "he",  "He",  "his",  "His",  "him",   "kind", "F",     "fhe",   "fHe",    "fhis",    "fHis",  "fhim",   "fkind",
    "E", "ehe", "eHe", "ehis", "ehim", "color", "toy",  "treat", "fruit", "flower", "critter", "water", "number",
});

}  // namespace

std::span<const Person> children() { return kChildren; }
std::span<const Person> animals() { return kAnimals; }
std::span<const Person> elders_of_children() { return kElders; }
std::span<const Person> elders_of_animals() { return kAnimalElders; }
std::span<const std::string_view> colors() { return kColors; }
std::span<const std::string_view> toys() { return kToys; }
std::span<const std::string_view> treats() { return kTreats; }
std::span<const std::string_view> fruits() { return kFruits; }
std::span<const std::string_view> flowers() { return kFlowers; }
std::span<const std::string_view> critters() { return kCritters; }
std::span<const std::string_view> waters() { return kWaters; }
std::span<const std::string_view> numbers() { return kNumbers; }
std::span<const std::string_view> story_slots() { return kSlots; }

}  // namespace cairn::data
