// Token files of both kinds: what is written is read, and what is damaged is refused.
#include "runtime/data/token_file/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/token_file/megatron_file.h"

namespace megascale::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kDigest(64, 'a');

class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/", info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = absl::StrCat(folder_, "/t");
  }

  void Write(int64_t vocabulary, const std::vector<std::vector<int32_t>>& documents) const {
    auto writer = TokenFileWriter::Create({path_, vocabulary, kDigest});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& document : documents) ASSERT_TRUE((*writer)->Append(document).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  static std::vector<int32_t> All(const TokenSource& source) {
    std::vector<int32_t> ids(source.num_tokens());
    const absl::Status status = source.Read(0, absl::MakeSpan(ids));
    EXPECT_TRUE(status.ok()) << status;
    return ids;
  }

  void Put(const std::string& path, const std::string& content) const {
    ASSERT_TRUE(base::WriteFileDurably(path, content).ok());
  }

  std::string folder_, path_;
};

TEST_F(TokenFileTest, WhatIsWrittenIsRead) {
  for (const int64_t vocabulary : {int64_t{65536}, int64_t{65537}}) {
    Write(vocabulary, {{1, 65535, 3}, {}, {7}});
    const auto file = OpenTokenFile(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(All(*file->source), ElementsAre(1, 65535, 3, 7));
    EXPECT_EQ(file->source->num_documents(), 3);
    EXPECT_EQ(file->source->DocumentBegin(1), 3);
    EXPECT_EQ(file->source->DocumentEnd(1), 3);
    EXPECT_EQ(file->source->DocumentEnd(2), 4);
    EXPECT_EQ(file->tokenizer_sha256, kDigest);
    EXPECT_EQ(BytesOf(file->source->layout().type), vocabulary == 65536 ? 2 : 4);
    EXPECT_TRUE(VerifyTokenFile(path_).ok());
  }
}

TEST_F(TokenFileTest, ALongFileIsReadAtAnyPlace) {
  std::vector<int32_t> ids(700001);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50000);
  Write(50000, {ids});
  const auto file = OpenTokenFile(path_);
  EXPECT_EQ(All(*file->source), ids);
  std::vector<int32_t> part(3);
  ASSERT_TRUE(file->source->Read(699998, absl::MakeSpan(part)).ok());
  EXPECT_THAT(part, ElementsAre(49998, 49999, 0));
  EXPECT_TRUE(VerifyTokenFile(path_).ok());
}

TEST_F(TokenFileTest, AnEmptyFileHasNoDocuments) {
  Write(10, {});
  const auto file = OpenTokenFile(path_);
  EXPECT_EQ(file->source->num_tokens(), 0);
  EXPECT_EQ(file->source->num_documents(), 0);
}

TEST_F(TokenFileTest, AFileThatIsNotFinishedDoesNotAppear) {
  {
    auto writer = TokenFileWriter::Create({path_, 10, kDigest});
    ASSERT_TRUE((*writer)->Append({1, 2}).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TokenFileTest, DamageIsFoundWhereItIs) {
  Write(10, {{1, 2, 3}, {4}});
  const std::string good = *base::ReadFile(path_, 1 << 20);
  const auto error_of = [&](const std::string& content) {
    Put(path_, content);
    return std::string(OpenTokenFile(path_).status().message());
  };
  EXPECT_THAT(error_of(good.substr(0, 100)), HasSubstr("has 100 bytes, too few"));
  EXPECT_THAT(error_of("x" + good.substr(1)), HasSubstr("is no token file"));
  std::string bad = good;
  bad[8] = 2;
  EXPECT_THAT(error_of(bad), HasSubstr("has version 2, expected 1"));
  EXPECT_THAT(error_of(good + "x"), HasSubstr("but its header says 4 tokens of 2 bytes in 2"));
  bad = good;
  bad[good.size() - 16] = 9;  // the end of the first document
  EXPECT_THAT(error_of(bad), HasSubstr("does not ascend to 4"));
  bad = good;
  bad[128] = 5;  // the first token
  EXPECT_EQ(error_of(bad), "");
  EXPECT_THAT(std::string(VerifyTokenFile(path_).message()), HasSubstr("differs from the digest"));
  bad[129] = 5;
  EXPECT_EQ(error_of(bad), "");
  std::vector<int32_t> ids(1);
  EXPECT_THAT(std::string(OpenTokenFile(path_)->source->Read(0, absl::MakeSpan(ids)).message()),
              HasSubstr("token 0 is 1285, expected 0 to 9"));
}

// An index as Megatron-LM writes it.
template <typename Number>
void Add(Number number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

struct IndexOptions {
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {3, 0, 2};
  std::vector<int64_t> positions = {0, 6, 6};
  std::vector<int64_t> documents = {0, 2, 3};
};

std::string Index(const IndexOptions& options) {
  std::string index("MMIDIDX\0\0", 9);
  Add(options.version, &index);
  Add(options.type, &index);
  Add(uint64_t{options.lengths.size()}, &index);
  Add(uint64_t{options.documents.size()}, &index);
  for (const int32_t length : options.lengths) Add(length, &index);
  for (const int64_t position : options.positions) Add(position, &index);
  for (const int64_t document : options.documents) Add(document, &index);
  return index;
}

TEST_F(TokenFileTest, AMegatronFileIsRead) {
  std::string tokens;
  for (const uint16_t token : {1, 2, 60000, 4, 5}) Add(token, &tokens);
  Put(path_ + ".bin", tokens);
  Put(path_ + ".idx", Index({}));
  for (const char* end : {"", ".bin", ".idx"}) {
    const auto source = OpenMegatronFile(path_ + end);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT(All(**source), ElementsAre(1, 2, 60000, 4, 5));
    EXPECT_EQ((*source)->num_documents(), 2);
    EXPECT_EQ((*source)->DocumentEnd(0), 3);
    EXPECT_EQ((*source)->DocumentEnd(1), 5);
  }
  Put(path_ + ".bin", tokens.substr(1));
  EXPECT_THAT(std::string(OpenMegatronFile(path_).status().message()),
              HasSubstr("t.bin: has 9 bytes, but its index says 5 tokens of 2 bytes"));
}

absl::StatusOr<MegatronIndex> IndexOf(const std::string& content, size_t* largest = nullptr) {
  return ReadMegatronIndex(static_cast<int64_t>(content.size()),
                           [&](int64_t offset, absl::Span<char> out) {
                             const auto at = static_cast<size_t>(offset);
                             if (at + out.size() > content.size())
                               return absl::DataLossError("ends too early");
                             std::memcpy(out.data(), content.data() + at, out.size());
                             if (largest != nullptr) *largest = std::max(*largest, out.size());
                             return absl::OkStatus();
                           });
}

TEST(MegatronIndexTest, ALongIndexIsReadInBlocks) {
  IndexOptions options;
  options.lengths.assign(150'000, 1);
  options.positions.clear();
  options.documents.clear();
  for (int64_t i = 0; i < 150'000; ++i) options.positions.push_back(2 * i);
  for (int64_t i = 0; i <= 150'000; ++i) options.documents.push_back(i);
  size_t largest = 0;
  const auto index = IndexOf(Index(options), &largest);
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->document_ends.size(), 150'000u);
  for (int64_t i = 0; i < 150'000; ++i) ASSERT_EQ(index->document_ends[i], i + 1);
  EXPECT_LE(largest, 1u << 20);
}

TEST(MegatronIndexTest, TheWorkGrowsAsTheIndex) {
  // Many sequences in one document, none in many, and one in each.
  const auto work = [](int64_t num_sequences, int64_t num_documents) {
    IndexOptions options;
    options.lengths.assign(static_cast<size_t>(num_sequences), 1);
    options.positions.clear();
    options.documents = {0};
    for (int64_t i = 0; i < num_sequences; ++i) options.positions.push_back(2 * i);
    for (int64_t i = 1; i <= num_documents; ++i) {
      options.documents.push_back(num_sequences * i / num_documents);
    }
    size_t largest = 0;
    return base::WorkOf([&] { EXPECT_TRUE(IndexOf(Index(options), &largest).ok()); });
  };
  constexpr int64_t kSize = 1 << 14;
  EXPECT_GE(work(kSize, 1), kSize);
  EXPECT_LE(work(2 * kSize, 1), work(kSize, 1) * 5 / 2);
  EXPECT_GE(work(0, kSize), kSize);
  EXPECT_LE(work(0, 2 * kSize), work(0, kSize) * 5 / 2);
  EXPECT_LE(work(2 * kSize, 2 * kSize), work(kSize, kSize) * 5 / 2);
}

TEST_F(TokenFileTest, TheWorkGrowsAsTheFile) {
  const auto work = [&](size_t num_documents, size_t size) {
    Write(70'000, std::vector<std::vector<int32_t>>(num_documents, std::vector<int32_t>(size, 7)));
    return base::WorkOf([&] {
      const auto file = OpenTokenFile(path_);
      ASSERT_TRUE(file.ok() && VerifyTokenFile(path_).ok());
      All(*file->source);
    });
  };
  constexpr size_t kSize = 1 << 14;
  const std::vector<std::pair<size_t, size_t>> shapes = {{kSize, 0}, {kSize, 1}, {1, kSize}};
  for (const auto& [documents, size] : shapes) {
    EXPECT_GE(work(documents, size), static_cast<int64_t>(kSize));
    EXPECT_LE(work(2 * documents, size), work(documents, size) * 5 / 2) << documents;
  }
}

TEST(MegatronIndexTest, AContradictionIsNamed) {
  const auto error_of = [](const IndexOptions& options) {
    return std::string(IndexOf(Index(options)).status().message());
  };
  IndexOptions options;
  options.version = 2;
  EXPECT_EQ(error_of(options), "has version 2, expected 1");
  options = {};
  options.type = 7;
  EXPECT_THAT(error_of(options), HasSubstr("has tokens of type 7, expected"));
  options = {};
  options.lengths[0] = -1;
  EXPECT_THAT(error_of(options), HasSubstr("sequence 0 has -1 tokens"));
  options = {};
  options.positions[2] = 8;
  EXPECT_THAT(error_of(options), HasSubstr("sequence 2 has 2 tokens at byte 8, expected byte 6"));
  options = {};
  options.documents = {0, 4};
  EXPECT_THAT(error_of(options), HasSubstr("document entry 1 is 4, expected 0 to 3"));
  options.documents = {0, 2};
  EXPECT_THAT(error_of(options), HasSubstr("its documents have 2 sequences of 3"));
  options.documents = {};
  EXPECT_THAT(error_of(options), HasSubstr("do not begin with 0"));
  EXPECT_THAT(std::string(IndexOf("MMIDIDX").status().message()),
              HasSubstr("is no index of Megatron-LM"));
  std::string huge = Index({});
  for (size_t i = 18; i < 26; ++i) huge[i] = '\xFF';
  EXPECT_EQ(IndexOf(huge).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::data
