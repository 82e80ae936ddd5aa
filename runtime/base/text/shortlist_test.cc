#include "runtime/base/text/shortlist.h"

#include <gtest/gtest.h>

namespace megascale::base {
namespace {

TEST(ShortlistTest, NamesAllUpToTheLimitAndCountsTheRest) {
  EXPECT_EQ(Shortlist({}), "");
  EXPECT_EQ(Shortlist({"n0"}), "n0");
  EXPECT_EQ(Shortlist({"n0", "n1"}, 2), "n0, n1");
  EXPECT_EQ(Shortlist({"n0", "n1", "n2", "n3"}, 2), "n0, n1 and 2 more");
  EXPECT_EQ(Shortlist(std::vector<std::string>(1536, "n")), "n, n, n, n, n, n, n, n and 1528 more");
}

}  // namespace
}  // namespace megascale::base
