#include "runtime/base/text/nearest_name.h"

#include "gtest/gtest.h"

namespace megascale::base {
namespace {

TEST(NearestNameTest, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("same", "same"), 0);
  EXPECT_EQ(EditDistance("hiden_size", "hidden_size"), 1);
  EXPECT_EQ(EditDistance("sumbit", "submit"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(NearestNameTest, FindsTheNearest) {
  const std::vector<std::string> known = {"submit", "status", "wait", "list", "logs"};
  EXPECT_EQ(NearestName("sumbit", known), "submit");
  EXPECT_EQ(NearestName("statsu", known), "status");
  EXPECT_EQ(NearestName("lst", known), "list");
  EXPECT_EQ(NearestName("log", known), "logs");
}

TEST(NearestNameTest, SaysNothingWhenNothingIsNear) {
  const std::vector<std::string> known = {"submit", "status"};
  EXPECT_EQ(NearestName("checkpoint", known), "");
  EXPECT_EQ(NearestName("", {}), "");
  EXPECT_EQ(NearestName(std::string(100000, 's'), known), "");
}

}  // namespace
}  // namespace megascale::base
