#include "controlplane/launch/log_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace megascale::launch {
namespace {

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() {
    std::string path = absl::StrCat(testing::TempDir(), "/log-XXXXXX");
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    name_ = {path + "/job/attempt-1", "rank-00003", 100};
  }

  int64_t BytesOnDisk() const {
    int64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(name_.directory)) {
      bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }

  LogName name_;
};

std::string Line(int number) { return absl::StrCat("line ", number, "\n"); }

TEST_F(LogFileTest, ReadsBackWhatWasAppended) {
  auto log = LogFile::Open(name_);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Append("hello ").ok());
  ASSERT_TRUE((*log)->Append("world\n").ok());
  const auto all = ReadLog(name_, 0, 1000);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->data, "hello world\n");
  EXPECT_EQ(all->next_offset, 12);
  EXPECT_EQ(ReadLog(name_, 6, 3)->data, "wor");
  EXPECT_EQ(ReadLog(name_, 12, 1000)->data, "");
  EXPECT_EQ(ReadLog(name_, 12, 1000)->next_offset, 12);
}

TEST_F(LogFileTest, KeepsAtMostTwoSegmentsAndOffsetsStayGood) {
  auto log = LogFile::Open(name_);
  ASSERT_TRUE(log.ok());
  std::string written;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE((*log)->Append(Line(i)).ok());
    written += Line(i);
    ASSERT_LE(BytesOnDisk(), 200);
  }
  const auto kept = ReadLog(name_, 0, 1000);
  ASSERT_TRUE(kept.ok());
  EXPECT_GT(kept->data.size(), 100u);
  EXPECT_EQ(kept->next_offset, static_cast<int64_t>(written.size()));
  EXPECT_THAT(written, testing::EndsWith(kept->data));
  EXPECT_EQ(ReadLog(name_, kept->next_offset - 9, 1000)->data, Line(999));
}

TEST_F(LogFileTest, AWriteLargerThanASegmentIsCutAcrossSegments) {
  auto log = LogFile::Open(name_);
  ASSERT_TRUE(log.ok());
  ASSERT_TRUE((*log)->Append(std::string(250, 'a') + std::string(50, 'b')).ok());
  EXPECT_EQ(ReadLog(name_, 0, 1000)->data, std::string(150, 'a') + std::string(50, 'b'));
  EXPECT_EQ(ReadLog(name_, 0, 1000)->next_offset, 300);
}

TEST_F(LogFileTest, GoesOnWhereAnEarlierProcessStopped) {
  ASSERT_TRUE((*LogFile::Open(name_))->Append(std::string(130, 'x')).ok());
  ASSERT_TRUE((*LogFile::Open(name_))->Append("next\n").ok());
  EXPECT_EQ(ReadLog(name_, 130, 1000)->data, "next\n");
}

TEST_F(LogFileTest, LastLinesAreTheNewestOnes) {
  auto log = LogFile::Open(name_);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ((*log)->LastLines(3), "");
  ASSERT_TRUE((*log)->Append("one\n").ok());
  EXPECT_EQ((*log)->LastLines(3), "one");
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE((*log)->Append(Line(i)).ok());
  ASSERT_TRUE((*log)->Append("no newline").ok());
  EXPECT_EQ((*log)->LastLines(3), "line 9998\nline 9999\nno newline");
}

TEST_F(LogFileTest, ReadOfAnUnknownLogIsNotFound) {
  EXPECT_EQ(ReadLog(name_, 0, 100).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace megascale::launch
