#include "runtime/base/text/printable.h"

#include "gtest/gtest.h"

namespace megascale::base {
namespace {

TEST(PrintableTest, LeavesTextAsItIs) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("a b/ü→🙂`'\\"), "a b/ü→🙂`'\\");
}

TEST(PrintableTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(Printable("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(Printable(absl::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\u009b");      // CSI in one character
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\u202e");  // right-to-left override
  EXPECT_EQ(Printable("\xe2\x80\xa8"), "\\u2028");  // line separator
}

TEST(PrintableTest, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(Printable("a\xff"), "a\\xff");
  EXPECT_EQ(Printable("\xc3"), "\\xc3");                    // cut short
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");           // "/" in two bytes
  EXPECT_TRUE(IsUtf8("ü"));
  EXPECT_FALSE(IsUtf8("ü\x80"));
}

TEST(PrintableTest, CutsBetweenCharacters) {
  EXPECT_EQ(Printable("abc", 3), "abc");
  EXPECT_EQ(Printable("abcd", 3), "abc…");
  EXPECT_EQ(Printable("aüb", 2), "a…");
  EXPECT_EQ(Printable("abc", 0), "…");
}

}  // namespace
}  // namespace megascale::base
