#include "runtime/tensor/sum_tree.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace megascale::tensor {
namespace {

// A sum that shows how it was made.
struct Term {
  std::string text;
  friend Term operator+(const Term& a, const Term& b) {
    return {absl::StrCat("(", a.text, b.text, ")")};
  }
};

std::string Tree(int64_t first, int64_t count) {
  return SumTree(first, count,
                 [](int64_t i) { return Term{std::string(1, static_cast<char>('a' + i))}; })
      .text;
}

TEST(SumTree, TheLeftHalfHasTheGreatestPowerOfTwoBelowTheCount) {
  EXPECT_EQ(Tree(0, 1), "a");
  EXPECT_EQ(Tree(0, 2), "(ab)");
  EXPECT_EQ(Tree(0, 3), "((ab)c)");
  EXPECT_EQ(Tree(0, 4), "((ab)(cd))");
  EXPECT_EQ(Tree(0, 5), "(((ab)(cd))e)");
  EXPECT_EQ(Tree(0, 6), "(((ab)(cd))(ef))");
  EXPECT_EQ(Tree(0, 7), "(((ab)(cd))((ef)g))");
  EXPECT_EQ(Tree(0, 8), "(((ab)(cd))((ef)(gh)))");
  EXPECT_EQ(Tree(0, 12), "((((ab)(cd))((ef)(gh)))((ij)(kl)))");
}

// Whoever carries the numbers of a node can add them up alone.
TEST(SumTree, AMemberThatCarriesAPowerOfTwoOfNumbersAddsUpANode) {
  for (const int members : {2, 4}) {
    const int64_t carried = 16 / members;
    const Term sum =
        SumTree(0, members, [&](int64_t member) { return Term{Tree(member * carried, carried)}; });
    EXPECT_EQ(sum.text, Tree(0, 16));
  }
}

}  // namespace
}  // namespace megascale::tensor
