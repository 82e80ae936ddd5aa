// Makes inputs for the targets: copies of known ones with seeded mistakes in them. The same seed
// and the same calls give the same inputs on every machine. Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace megascale::fuzz {

// Random numbers that are the same on every machine (SplitMix64). Source: Steele, Lea, Flood, 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // Returns a number from 0 to count - 1; 0 if count is 0.
  size_t Below(size_t count) { return count == 0 ? 0 : static_cast<size_t>(Next() % count); }
  bool OneIn(size_t count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

// Returns a number that often breaks code: 0, -1, powers of two and their neighbours, the limits of
// a type.
int64_t InterestingNumber(Random* random);

// Makes one to four mistakes in bytes: bits, bytes, lengths, pieces moved, repeated or taken from
// `other`, words of `dictionary`. Returns at most `bytes_max` bytes.
struct ByteMutation {
  const std::vector<std::string>* dictionary = nullptr;
  const std::string* other = nullptr;
  size_t bytes_max = 0;
};
std::string MutateBytes(std::string input, const ByteMutation& mutation, Random* random);

// Makes one mistake in a message, at any depth: clears a field, sets it to an interesting value, or
// removes, repeats or adds an element of a list.
void MutateMessage(google::protobuf::Message* message, Random* random);

}  // namespace megascale::fuzz
