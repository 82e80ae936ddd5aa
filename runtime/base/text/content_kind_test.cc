#include "runtime/base/text/content_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace megascale::base {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(ContentKindTest, NamesWhatIsOftenFoundInAnotherFilesPlace) {
  EXPECT_THAT(WhatItIs("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(WhatItIs("\xef\xbb\xbf <!doctype HTML>"), StartsWith("is a web page"));
  EXPECT_THAT(WhatItIs(std::string("\xfd"
                                   "7zXZ\0\0",
                                   7)),
              StartsWith("is packed with xz"));
  EXPECT_THAT(WhatItIs(std::string(257, '\0') + "ustar"), StartsWith("is a tar archive"));
  EXPECT_THAT(WhatItIs(""), StartsWith("is empty"));
}

TEST(ContentKindTest, KnowsNothingOfOtherContent) {
  EXPECT_EQ(WhatItIs("{\"a\": 1}"), "");
  EXPECT_EQ(WhatItIs(std::string(8, '\0')), "");
  EXPECT_EQ(WhatItIs("version 2"), "");
  EXPECT_EQ(WhatItIs("PK"), "");
}

}  // namespace
}  // namespace megascale::base
