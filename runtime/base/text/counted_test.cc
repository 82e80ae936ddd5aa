#include "runtime/base/text/counted.h"

#include <gtest/gtest.h>

namespace megascale::base {
namespace {

TEST(CountedTest, OnlyOneThingIsSingular) {
  EXPECT_EQ(Counted(0, "job"), "0 jobs");
  EXPECT_EQ(Counted(1, "job"), "1 job");
  EXPECT_EQ(Counted(1536, "node"), "1536 nodes");
}

}  // namespace
}  // namespace megascale::base
