#include "gpu/ops/products/algorithm_table.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megascale::gpu {
namespace {

using ::testing::HasSubstr;

Product SomeProduct() {
  Product product;
  product.compute = tensor::DType::kBF16;
  product.m = 64, product.n = 128, product.k = 32;
  product.transpose_b = ops::Transpose::kYes;
  product.epilogue = Epilogue::kBias;
  product.b_alignment = 4;
  return product;
}

// All fields differ from their defaults and from each other.
Algorithm SomeAlgorithm() {
  Algorithm algorithm;
  algorithm.library_version = 130100;
  algorithm.id = 66, algorithm.tile = 20, algorithm.split_k = 3, algorithm.reduction_scheme = 2;
  algorithm.swizzle = 1, algorithm.custom_option = 4'000'000'000, algorithm.stages = 36;
  algorithm.inner_shape = 5, algorithm.cluster_shape = 65535;
  algorithm.words = {0xffffffffffffffff, 0, 1, 2, 3, 4, 5, 0x8000000000000000};
  return algorithm;
}

AlgorithmTable SomeTable() {
  AlgorithmTable table;
  table.Set(SomeProduct(), SomeAlgorithm());
  Product other = SomeProduct();
  other.m = 1, other.compute = tensor::DType::kF32, other.tf32 = true, other.accumulate = true;
  other.epilogue = Epilogue::kNone;
  table.Set(other, Algorithm{});
  return table;
}

TEST(AlgorithmTable, ComesBackFromItsText) {
  const AlgorithmTable table = SomeTable();
  const auto read = AlgorithmTable::FromJson(table.ToJson());
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(*read, table);
  EXPECT_EQ(read->ToJson(), table.ToJson());
  ASSERT_NE(read->Find(SomeProduct()), nullptr);
  EXPECT_EQ(*read->Find(SomeProduct()), SomeAlgorithm());
}

TEST(AlgorithmTable, AnEmptyOneComesBackToo) {
  const auto read = AlgorithmTable::FromJson(AlgorithmTable().ToJson());
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(*read, AlgorithmTable());
}

TEST(AlgorithmTable, TellsProductsApartByEveryField) {
  const AlgorithmTable table = SomeTable();
  const auto find_with = [&](auto change) {
    Product product = SomeProduct();
    change(product);
    return table.Find(product);
  };
  EXPECT_NE(find_with([](Product&) {}), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.compute = tensor::DType::kF32; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.result = tensor::DType::kBF16; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { ++p.m; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { ++p.n; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { ++p.k; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.transpose_a = ops::Transpose::kYes; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.transpose_b = ops::Transpose::kNo; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.accumulate = true; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.tf32 = true; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.epilogue = Epilogue::kNone; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.a_alignment = 8; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.b_alignment = 8; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.c_alignment = 8; }), nullptr);
  EXPECT_EQ(find_with([](Product& p) { p.bias_alignment = 8; }), nullptr);
}

TEST(AlgorithmTable, DescribesProducts) {
  EXPECT_EQ(Describe(SomeProduct()), "BF16 [64, 32] x [128, 32]^T + bias to F32");
  Product product;
  product.m = 2, product.n = 3, product.k = 4;
  product.tf32 = product.accumulate = true;
  EXPECT_EQ(Describe(product), "F32 (as TF32) [2, 4] x [4, 3] added to F32");
}

TEST(AlgorithmTable, RefusesWrongTextAndNamesThePlace) {
  const auto error_with = [](const std::string& from, const std::string& to) {
    const std::string text = SomeTable().ToJson();
    EXPECT_THAT(text, HasSubstr(from));
    const absl::Status status =
        AlgorithmTable::FromJson(absl::StrReplaceAll(text, {{from, to}})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << from << " -> " << to;
    return std::string(status.message());
  };
  EXPECT_THAT(error_with("{\"format\"", "\"format\""), HasSubstr("no JSON"));
  EXPECT_THAT(error_with("\"format\": 1", "\"format\": 2"), HasSubstr("\"format\" is 2"));
  EXPECT_THAT(error_with("\"m\":64", "\"m\":0"), HasSubstr("\"m\" is not greater"));
  EXPECT_THAT(error_with("\"m\":64", "\"M\":64"), HasSubstr("\"m\" is missing"));
  EXPECT_THAT(error_with("\"m\":64", "\"m\":6.5"), HasSubstr("\"m\" is no whole number"));
  EXPECT_THAT(error_with("\"BF16\"", "\"F64\""), HasSubstr("\"compute\" is neither"));
  EXPECT_THAT(error_with("\"bias\"", "\"bais\""), HasSubstr("\"epilogue\" is no epilogue"));
  EXPECT_THAT(error_with("\"tf32\":true", "\"tf32\":1"), HasSubstr("\"tf32\" is neither"));
  EXPECT_THAT(error_with("\"b_alignment\":4", "\"b_alignment\":3"), HasSubstr("power of two"));
  EXPECT_THAT(error_with("\"b_alignment\":4", "\"b_alignment\":32"), HasSubstr("power of two"));
  EXPECT_THAT(error_with("65535", "65536"), HasSubstr("\"cluster_shape\" is out of range"));
  EXPECT_THAT(error_with("ffffffffffffffff", "ffff"), HasSubstr("\"words\" has not 128 digits"));
  EXPECT_THAT(error_with("ffffffffffffffff", "fffffffffffffffg"), HasSubstr("not hexadecimal"));
  EXPECT_THAT(error_with("\"algorithm\":", "\"algorithms\":"), HasSubstr("is missing"));
  const std::string names_product = error_with("\"id\":66", "\"id\":\"a\"");
  EXPECT_THAT(names_product, HasSubstr("BF16 [64, 32] x [128, 32]^T + bias to F32"));
  for (const char* text : {"[]", "7", "{}", ""}) {
    EXPECT_EQ(AlgorithmTable::FromJson(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(AlgorithmTable, RefusesAProductThatIsThereTwice) {
  AlgorithmTable table;
  table.Set(SomeProduct(), SomeAlgorithm());
  const std::string text = table.ToJson();
  const size_t first = text.find('\n') + 1;
  const std::string line = text.substr(first, text.find('\n', first) - first);
  const auto read =
      AlgorithmTable::FromJson(absl::StrReplaceAll(text, {{line, line + "," + line}}));
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("is there twice"));
}

}  // namespace
}  // namespace megascale::gpu
