#include "runtime/checkpoint/product_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"

namespace megascale::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::string_view kTable = "{\"products\": [\n{\"m\": 1},\n{\"m\": 2}\n]}\n";

std::string NewFolder() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  static int number = 0;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/", test->name(), "-", ++number);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(base::MakeDirectories(folder).ok());
  return folder;
}

std::string FileIn(const std::string& folder) {
  return absl::StrCat(folder, "/", kProductTableFile);
}

TEST(ProductTableTest, TheFirstTableIsKeptForEver) {
  const std::string folder = NewFolder();
  EXPECT_EQ(ReadProductTable(folder).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*KeepProductTable(folder, kTable), kTable);
  EXPECT_EQ(*KeepProductTable(folder, "another"), kTable);
  EXPECT_EQ(*ReadProductTable(folder), kTable);
  // Nothing else is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(ProductTableTest, ATableThatIsTooLargeIsRefused) {
  const std::string folder = NewFolder();
  const std::string largest(kProductTableBytesMax, 't');
  EXPECT_EQ(KeepProductTable(folder, largest + "t").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KeepProductTable(folder, largest).value(), largest);
}

TEST(ProductTableTest, EveryDamageIsFoundAndNamedInOneLine) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(KeepProductTable(folder, kTable).ok());
  const std::string whole = base::ReadFile(FileIn(folder), 1 << 20).value();
  const auto expect_damage = [&](const std::string& content) {
    ASSERT_TRUE(base::WriteFileDurably(FileIn(folder), content).ok());
    const absl::Status status = ReadProductTable(folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(FileIn(folder)), HasSubstr("is damaged"), Not(HasSubstr("\n"))));
  };
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] ^= 1;
    expect_damage(damaged);
  }
  expect_damage("");
  expect_damage(whole.substr(0, whole.size() / 2));
  expect_damage(whole + " ");
  ASSERT_TRUE(base::WriteFileDurably(FileIn(folder), whole).ok());
  EXPECT_TRUE(ReadProductTable(folder).ok());
}

// Returns a checkpoint's folder with the table of `job`; empty: the job has no table.
std::string Checkpoint(const std::string& job) {
  const std::string folder = NewFolder();
  v1::Manifest manifest;
  if (!job.empty()) {
    EXPECT_EQ(CopyProductTable(job, folder, manifest.mutable_numerics()), absl::OkStatus());
  }
  manifest.set_format_version(kFormatVersion);
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  EXPECT_EQ(base::WriteFileDurably(path, ToJson(manifest, JsonStyle::kPretty)), absl::OkStatus());
  return folder;
}

absl::StatusOr<std::string> TableIn(const std::string& checkpoint) {
  return ProductTableOfCheckpoint(ReadManifest(checkpoint).value(), checkpoint);
}

TEST(ProductTableTest, ACheckpointHasACopyAndItsDigest) {
  EXPECT_EQ(*TableIn(Checkpoint("")), "") << "a job without a table";
  const std::string job = NewFolder();
  ASSERT_TRUE(KeepProductTable(job, kTable).ok());
  const std::string checkpoint = Checkpoint(job);
  EXPECT_EQ(*TableIn(checkpoint), kTable);
  EXPECT_TRUE(IsProductTableOf(ReadManifest(checkpoint).value(), kTable));
  EXPECT_FALSE(IsProductTableOf(ReadManifest(checkpoint).value(), "another"));
  EXPECT_TRUE(IsProductTableOf(ReadManifest(Checkpoint("")).value(), kTable));
}

// Else the next checkpoints would silently lack it. Not NotFound, after which nobody tries again.
TEST(ProductTableTest, ATableThatWasDeletedIsAnErrorUntilItIsBack) {
  const std::string job = NewFolder(), checkpoint = NewFolder();
  v1::NumericsFingerprint fingerprint;
  const absl::Status status = CopyProductTable(job, checkpoint, &fingerprint);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(FileIn(job) + " is missing"), HasSubstr("copy it back"),
                    Not(HasSubstr("\n"))));
  ASSERT_TRUE(KeepProductTable(job, kTable).ok());
  EXPECT_EQ(CopyProductTable(job, checkpoint, &fingerprint), absl::OkStatus());
  EXPECT_EQ(*ReadProductTable(checkpoint), kTable);
}

TEST(ProductTableTest, AJobFromACheckpointHasItsDigest) {
  v1::NumericsFingerprint kept, now;
  TakeProductTable(kept, &now);
  EXPECT_TRUE(now.fields().empty());
  (*kept.mutable_fields())["products"] = "a digest";
  TakeProductTable(kept, &now);
  EXPECT_EQ(now.fields().at("products"), "a digest");
}

TEST(ProductTableTest, ACheckpointWhoseTableIsNotItsOwnIsRefusedInOneLine) {
  const std::string job = NewFolder();
  ASSERT_TRUE(KeepProductTable(job, kTable).ok());
  const std::string checkpoint = Checkpoint(job);
  const auto expect_refusal = [&](const char* why) {
    const absl::Status status = TableIn(checkpoint).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(FileIn(checkpoint)), HasSubstr(why),
                      HasSubstr("--allow-changed products"), Not(HasSubstr("\n"))));
  };
  ASSERT_TRUE(base::WriteFileDurably(FileIn(checkpoint), "{}").ok());
  expect_refusal("is damaged");
  const std::string other = NewFolder();
  ASSERT_TRUE(KeepProductTable(other, "another").ok());
  std::filesystem::remove(FileIn(checkpoint));
  expect_refusal("is missing");
  std::filesystem::copy(FileIn(other), FileIn(checkpoint));
  expect_refusal("is of another job");
}

}  // namespace
}  // namespace megascale::checkpoint
