// How people know a rank of a job: "rank 3: node b, stage 1, data 0".
#pragma once

#include <string>

namespace megascale::trace {

struct RankName {
  std::string rank;   // "rank 3"
  std::string node;   // the id of its node, printable; empty: unknown
  std::string place;  // "stage 1, data 0"; may be empty

  // Returns "rank 3: node b, stage 1, data 0".
  std::string Text() const;
  // Returns the same for use within a sentence: "rank 3 (node b, stage 1, data 0)".
  std::string InSentence() const;
  // Returns "node b"; without a node, "the machine of rank 3 (stage 1, data 0)".
  std::string Machine() const;
};

}  // namespace megascale::trace
