#include "gpu/ops/products/device_table.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megascale::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ProductPlace Place() {
  return {.device = "Emulated GPU", .library_version = 130100, .workspace_bytes = 32 << 20};
}

AlgorithmTable SomeTable() {
  AlgorithmTable table;
  Product product;
  product.m = 64, product.n = 128, product.k = 32;
  table.Set(product, {.library_version = 130100, .id = 66, .tile = 20});
  return table;
}

std::string TextOf(const std::string& device, int version) {
  return absl::StrCat(R"({"device": ")", device, R"(", "cublas_lt": )", version,
                      R"(, "workspace_bytes": 33554432, "driver": "580.65.06", )",
                      R"("date": "2026-12-01", "commit": "0123abcd", "table": )",
                      SomeTable().ToJson(), "}");
}

DeviceTableChoice Choose(const std::vector<std::string>& texts) {
  std::vector<DeviceTableFile> files;
  for (const std::string& text : texts) files.push_back({"file", text.data(), text.size()});
  return ChooseDeviceTable(files, Place()).value();
}

TEST(DeviceTable, TheOneOfThisDeviceAndLibraryCountsAndSaysWhereItComesFrom) {
  const DeviceTableChoice choice =
      Choose({TextOf("Another GPU", 130100), TextOf("Emulated GPU", 130100)});
  EXPECT_EQ(choice.table.products(), SomeTable().products());
  const std::string origin =
      "Emulated GPU with cuBLASLt 130100 and 32 MiB of workspace, driver 580.65.06, 2026-12-01, "
      "commit 0123abcd";
  EXPECT_EQ(choice.table.origin(), origin);
  EXPECT_EQ(choice.line, "the table of products of " + origin);
  // It goes along with the job's table.
  AlgorithmTable of_job;
  of_job.Add(choice.table);
  EXPECT_EQ(AlgorithmTable::FromJson(of_job.ToJson())->origin(), origin);
}

TEST(DeviceTable, OneOfAnotherDeviceOrLibraryIsPassedOverInOneLine) {
  const auto expect_none = [](const std::vector<std::string>& texts, const std::string& line) {
    const DeviceTableChoice choice = Choose(texts);
    EXPECT_TRUE(choice.table.products().empty());
    EXPECT_EQ(choice.line, line);
  };
  const std::string none =
      "this program has no table of products of Emulated GPU with cuBLASLt 130100 and 32 MiB of "
      "workspace";
  expect_none({}, "");
  expect_none({TextOf("Another GPU", 130100)}, none + "; measures them");
  expect_none({TextOf("Emulated GPU", 130200)},
              none +
                  ", only of Emulated GPU with cuBLASLt 130200 and 32 MiB of workspace; "
                  "measures them");
}

TEST(DeviceTable, ADamagedFileIsNamedWithItsKey) {
  const std::string whole = TextOf("Emulated GPU", 130100);
  const auto expect_error = [&](const std::string& text, const std::string& why) {
    const DeviceTableFile file = {"h200.json", text.data(), text.size()};
    const absl::Status status = ChooseDeviceTable({&file, 1}, Place()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("h200.json"), HasSubstr(why), Not(HasSubstr("\n"))));
  };
  expect_error("{", "it is no JSON object");
  for (const char* const key :
       {"device", "cublas_lt", "workspace_bytes", "driver", "date", "commit", "table"}) {
    const std::string quoted = absl::StrCat("\"", key, "\":");
    expect_error(absl::StrReplaceAll(whole, {{quoted, "\"x\":"}}),
                 absl::StrCat("\"", key, "\" is missing"));
  }
  expect_error(absl::StrReplaceAll(whole, {{": 130100,", ": \"13\","}}), "is no whole number");
  expect_error(absl::StrReplaceAll(whole, {{"\"m\":64", "\"m\":0"}}), "is not greater than 0");
}

// The tables of the program itself.
TEST(DeviceTable, EveryCommittedTableIsWhole) {
  for (const DeviceTableFile& file : DeviceTableFiles()) {
    const auto table = ParseDeviceTable({static_cast<const char*>(file.data), file.size});
    ASSERT_EQ(table.status(), absl::OkStatus()) << file.name;
    EXPECT_FALSE(table->table.products().empty()) << file.name;
  }
}

}  // namespace
}  // namespace megascale::gpu
