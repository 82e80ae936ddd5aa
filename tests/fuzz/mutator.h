// Makes inputs for the targets: copies of known ones with seeded mistakes in them. The same seed
// and the same calls give the same inputs on every machine. Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace megascale::fuzz {

// Numbers that are the same on every machine (SplitMix64). Source: Steele, Lea, Flood, 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // From 0 to count - 1; 0 where count is 0.
  size_t Below(size_t count) { return count == 0 ? 0 : static_cast<size_t>(Next() % count); }
  bool OneIn(size_t count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

// A number that code trips over: 0, -1, powers of two and their neighbours, the ends of each type.
int64_t InterestingNumber(Random* random);

// One to four mistakes in bytes: bits, bytes, lengths, pieces moved, repeated or taken from
// `other`, words of `dictionary`. At most `bytes_max` bytes come back.
struct ByteMutation {
  const std::vector<std::string>* dictionary = nullptr;
  const std::string* other = nullptr;
  size_t bytes_max = 0;
};
std::string MutateBytes(std::string input, const ByteMutation& mutation, Random* random);

// One mistake in a message, at any depth: a field cleared, set to an interesting value, an element
// of a list removed, repeated or added.
void MutateMessage(google::protobuf::Message* message, Random* random);

}  // namespace megascale::fuzz
