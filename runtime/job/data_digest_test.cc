#include "runtime/job/data_digest.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace megascale::job {
namespace {

using checkpoint::v1::DataFingerprint;

DataFingerprint DataOf(int num_files) {
  DataFingerprint data;
  for (int i = 0; i < num_files; ++i) data.add_file_sha256(absl::StrCat(i, std::string(60, 'a')));
  data.set_total_bytes(7);
  return data;
}

TEST(DataDigestTest, StandsForTheListInAFewBytes) {
  const DataFingerprint data = DataOf(20'000);
  EXPECT_GT(data.ByteSizeLong(), 1'000'000u);
  const DataFingerprint digest = DigestOf(data);
  EXPECT_LT(digest.ByteSizeLong(), 100u);
  EXPECT_EQ(digest.num_files(), 20'000);
  EXPECT_EQ(digest.total_bytes(), 7);
  EXPECT_TRUE(AreSameData(data, digest));
  EXPECT_TRUE(AreSameData(digest, digest));
}

TEST(DataDigestTest, TellsEveryOtherListApart) {
  const DataFingerprint data = DataOf(3);
  EXPECT_FALSE(AreSameData(DigestOf(DataOf(4)), data));
  DataFingerprint other = data;
  other.set_file_sha256(1, "b");
  EXPECT_FALSE(AreSameData(DigestOf(other), data));
  other = data;
  other.mutable_file_sha256()->SwapElements(0, 1);
  EXPECT_FALSE(AreSameData(DigestOf(other), data)) << "the order of files is that of tokens";
  other = data;
  other.set_total_bytes(8);
  EXPECT_FALSE(AreSameData(DigestOf(other), data));
}

// An older version compares every field, and those that it does not know, too.
TEST(DataDigestTest, TheListForAnOlderVersionHasNoDigest) {
  DataFingerprint both = DataOf(2);
  both.set_files_sha256(DigestOf(both).files_sha256());
  both.set_num_files(2);
  EXPECT_EQ(ListOf(both).SerializeAsString(), DataOf(2).SerializeAsString());
}

TEST(DataDigestTest, DataWithoutFilesHasNone) {
  EXPECT_EQ(DigestOf(DataOf(0)).files_sha256(), "");
  EXPECT_TRUE(AreSameData(DataOf(0), DataOf(0)));
}

}  // namespace
}  // namespace megascale::job
