#include "runtime/job/names.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace megascale::job {
namespace {

constexpr char kExpected[] =
    ": expected 1 to 128 letters, digits, '-', '_' and '.', beginning with a letter, digit or '_'; "
    "`megascale list` shows the ids of all jobs";

std::string JobIdError(const std::string& job_id) {
  const absl::Status status = CheckJobId(job_id);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << job_id;
  const std::string message(status.message());
  const size_t begin = message.find(": expected");
  EXPECT_NE(begin, std::string::npos) << message;
  EXPECT_EQ(message.substr(begin), kExpected);
  return message.substr(0, begin);
}

std::string PathError(const std::string& path) {
  const absl::Status status = CheckPath("data.files", path);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
  return std::string(status.message());
}

TEST(NamesTest, TakesOrdinaryJobIds) {
  for (const char* id : {"a", "fortunes-1a2b3c4d", "_x", "9", "A.b_c-d"}) {
    EXPECT_TRUE(CheckJobId(id).ok()) << id;
  }
  EXPECT_TRUE(CheckJobId(std::string(128, 'a')).ok());
}

TEST(NamesTest, RefusesJobIdsThatAreNoNames) {
  EXPECT_EQ(JobIdError(""), "job id ''");
  EXPECT_EQ(JobIdError("../up"), "job id '../up'");
  EXPECT_EQ(JobIdError(".."), "job id '..'");
  EXPECT_EQ(JobIdError("a/b"), "job id 'a/b'");
  EXPECT_EQ(JobIdError("a b"), "job id 'a b'");
  EXPECT_EQ(JobIdError("-f"), "job id '-f'");
  EXPECT_EQ(JobIdError("jöb"), "job id 'jöb'");
  EXPECT_EQ(JobIdError("a\x1b[2J"), "job id 'a\\x1b[2J'");
  EXPECT_EQ(JobIdError(std::string("a\0b", 3)), "job id 'a\\x00b'");
  EXPECT_EQ(JobIdError("\xff\xfe"), "job id '\\xff\\xfe'");
  EXPECT_EQ(JobIdError(std::string(1000, 'a')),
            "job id '" + std::string(100, 'a') + "…' of 1000 bytes");
}

TEST(NamesTest, RefusesPathsThatNoMessageCarries) {
  EXPECT_TRUE(CheckPath("f", "/a b/ü/../c").ok());
  EXPECT_EQ(PathError("text"), "data.files: 'text' is not an absolute path");
  EXPECT_EQ(PathError(""), "data.files: '' is not an absolute path");
  for (const char* scheme : {"s3://", "gs://", "hdfs://", "file://"}) {
    EXPECT_EQ(PathError(absl::StrCat(scheme, "bucket/x")),
              absl::StrCat("data.files: '", scheme, "bucket/x' begins with ", scheme,
                           ", which is not supported; expected a path in a mounted file system"));
  }
  EXPECT_EQ(
      PathError("/a\n/b"),
      "data.files: '/a\\n/b' has control characters; expected a path without, rename the file");
  EXPECT_EQ(PathError(std::string("/a\0b", 4)),
            "data.files: '/a\\x00b' has control characters; expected a path without, rename the "
            "file");
  EXPECT_EQ(PathError("/\xff"),
            "data.files: '/\\xff' is not UTF-8; expected a path that is, rename the file");
  EXPECT_EQ(PathError("/" + std::string(4095, 'a')),
            "data.files: '/" + std::string(99, 'a') + "…' has 4096 bytes; a path has at most 4095");
}

}  // namespace
}  // namespace megascale::job
