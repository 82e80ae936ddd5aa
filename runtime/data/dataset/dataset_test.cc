// Text of every kind into tokens: what is trained on, what is held out, what is refused, and what a
// process that starts again does not encode again.
#include "runtime/data/dataset/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/dataset/text_chunks.h"
#include "runtime/data/token_file/token_file.h"

namespace megascale::data {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, "Line ", i * i % 97, " of them.\n");
  return text;
}

std::string Repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/dataset_", info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    job::v1::DataSpec& data = *spec_.mutable_data();
    data.set_tokenizer_vocab_size(300);
    data.set_held_out_fraction(0.25);
    data.set_token_cache(folder_ + "/cache");
    spec_.mutable_model()->set_vocab_size(300);
    spec_.mutable_train()->set_seq_length(16);
    spec_.mutable_train()->set_seed(3);
  }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(base::WriteFileDurably(path, content).ok());
    return path;
  }
  std::string Add(const std::string& name, const std::string& content) {
    const std::string path = Write(name, content);
    spec_.mutable_data()->add_files(path);
    return path;
  }
  std::string WriteGzip(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
              static_cast<int>(content.size()));
    gzclose(file);
    return path;
  }

  std::unique_ptr<Dataset> Open(const DatasetOptions& options = {}) {
    auto dataset = Dataset::Open(spec_, options);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }
  // Opens it and returns the error's message.
  std::string Refusal() {
    const auto dataset = Dataset::Open(spec_, {});
    EXPECT_FALSE(dataset.ok());
    return std::string(dataset.status().message());
  }
  static std::vector<int32_t> Ids(const TokenText& text) {
    std::vector<int32_t> ids(static_cast<size_t>(text.num_tokens()));
    EXPECT_TRUE(text.Read(0, absl::MakeSpan(ids)).ok());
    return ids;
  }
  static std::string Text(const Dataset& dataset, const TokenText& text) {
    return dataset.tokenizer()->tokenizer->Decode(Ids(text), {}).value();
  }
  // Learns a tokenizer and makes it that of the job.
  void UseLearntTokenizer() {
    const auto dataset = Open();
    const std::string path = Write("tokenizer.json", dataset->tokenizer()->files[0].content);
    spec_.mutable_data()->clear_tokenizer_vocab_size();
    spec_.mutable_data()->set_tokenizer(path);
  }

  std::string folder_;
  job::v1::JobSpec spec_;
};

TEST_F(DatasetTest, PlainTextIsCutAtTheByteAndDocumentsEndWithTheEndToken) {
  const std::string first = Lines(40), second = Lines(60);
  Add("a.txt", first);
  Add("b.txt", second);
  const auto dataset = Open();
  const std::string all = first + "<|endoftext|>" + second;
  const auto held_out = static_cast<size_t>(0.25 * static_cast<double>((first + second).size()));
  EXPECT_EQ(Text(*dataset, dataset->held_out()),
            second.substr(second.size() - held_out) + "<|endoftext|>");
  const auto fingerprint = dataset->Fingerprint().value();
  EXPECT_EQ(fingerprint.held_out_bytes(), static_cast<int64_t>(held_out));
  EXPECT_EQ(fingerprint.tokenizer(), dataset->tokenizer()->tokenizer->sha256());
  EXPECT_EQ(fingerprint.file_sha256_size(), 2);
}

// A message about thousands of files must not lose its end.
TEST_F(DatasetTest, AMessageNamesAFewOfManyFiles) {
  for (int i = 0; i < 20; ++i) Add(absl::StrCat("f", i + 10, ".txt"), Lines(40));
  const std::string text = Open()->PathsText();
  EXPECT_THAT(text, testing::StartsWith(folder_ + "/f10.txt, "));
  EXPECT_THAT(text, testing::EndsWith("more"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("f29.txt")));
}

TEST_F(DatasetTest, ACharacterIsNeverCutBetweenTheTwoParts) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\u00e4\u20ac ";
  Add("a.txt", text);
  for (const double fraction : {0.2, 0.201, 0.202, 0.203}) {
    spec_.mutable_data()->set_held_out_fraction(fraction);
    const auto dataset = Open();
    EXPECT_THAT(Text(*dataset, dataset->held_out()), ::testing::Not(HasSubstr("\uFFFD")));
  }
}

TEST_F(DatasetTest, JsonLinesPackedOrNotAndATokenFileGiveTheSameTokens) {
  std::string lines, documents;
  for (int i = 0; i < 50; ++i) {
    const std::string document = absl::StrCat("Document ", i, " says ", i * i, ".");
    absl::StrAppend(&lines, "{\"id\": ", i, ", \"text\": \"", document, "\"}\n");
    absl::StrAppend(&documents, document, "<|endoftext|>");
  }
  Add("a.jsonl", lines);
  spec_.mutable_data()->set_json_field("text");
  UseLearntTokenizer();
  const auto json = Open();
  const std::vector<int32_t> train = Ids(*json->train_texts()[0]);
  const std::vector<int32_t> held_out = Ids(json->held_out());
  std::vector<int32_t> all = train;
  all.insert(all.end(), held_out.begin(), held_out.end());
  EXPECT_EQ(json->tokenizer()->tokenizer->Decode(all, {}).value(), documents);
  EXPECT_EQ(train.back(), json->tokenizer()->end_token) << "cut at the end of a document";

  spec_.mutable_data()->set_files(0, WriteGzip("a.jsonl.gz", lines));
  EXPECT_EQ(Ids(Open()->held_out()), held_out);
  const std::string path = folder_ + "/a.tokens";
  const auto writer = TokenFileWriter::Create({path, 300, json->tokenizer()->tokenizer->sha256()});
  ASSERT_TRUE(writer.ok());
  std::vector<int32_t> document;
  for (const int32_t id : all) {
    document.push_back(id);
    if (id != json->tokenizer()->end_token) continue;
    ASSERT_TRUE((*writer)->Append(document).ok());
    document.clear();
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  spec_.mutable_data()->clear_json_field();
  spec_.mutable_data()->set_files(0, path);
  EXPECT_EQ(Ids(Open()->held_out()), held_out);
}

TEST_F(DatasetTest, AMegatronFileIsReadAndItsIndexIsNoFileOfItsOwn) {
  Add("a.txt", Lines(100));
  UseLearntTokenizer();
  const std::vector<uint16_t> ids(400, 7);
  std::filesystem::create_directories(folder_ + "/megatron");
  Write("megatron/x.bin", {reinterpret_cast<const char*>(ids.data()), ids.size() * 2});
  std::string index("MMIDIDX\0\0", 9);
  const auto add = [&](auto number) {
    index.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  add(uint64_t{1});
  add(uint8_t{8});
  add(uint64_t{2});
  add(uint64_t{3});
  for (const int32_t length : {300, 100}) add(length);
  for (const int64_t position : {0, 600}) add(position);
  for (const int64_t document : {0, 1, 2}) add(document);
  Write("megatron/x.idx", index);
  spec_.mutable_data()->set_files(0, folder_ + "/megatron");
  const auto dataset = Open();
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->held_out().num_tokens(), 100);
  EXPECT_EQ(dataset->Fingerprint()->total_tokens(), 400);
  EXPECT_EQ(dataset->Fingerprint()->file_sha256_size(), 1);
  const std::vector<uint16_t> wrong(400, 999);
  Write("megatron/x.bin", {reinterpret_cast<const char*>(wrong.data()), wrong.size() * 2});
  EXPECT_THAT(Refusal(), HasSubstr("x.bin: token 0 is 999, but model.vocab_size is 300"));
}

TEST_F(DatasetTest, ABadLineIsNamedWithFileAndLineOrCounted) {
  std::string lines;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&lines, "{\"text\": \"Line ", i * i, " of 40\"}\n");
  const std::string path = Add("a.jsonl", lines + "{\"body\": 1}\nno json\n" + lines);
  spec_.mutable_data()->set_json_field("text");
  EXPECT_THAT(Refusal(), StartsWith(path + ":41: has no field 'text'"));
  spec_.mutable_data()->set_skip_bad(true);
  const auto dataset = Open();
  ASSERT_NE(dataset, nullptr);
  EXPECT_THAT(dataset->warnings(),
              ::testing::ElementsAre(absl::StrCat("data.files: ", path, ": skipped 2 bad lines")));
}

TEST_F(DatasetTest, TextThatIsNotUtf8IsNamedWithItsLineOrCounted) {
  const std::string path = Add("a.txt", Lines(30) + "\xff" + Lines(90));
  EXPECT_THAT(Refusal(), HasSubstr(path + ":31: is not UTF-8 at byte "));
  spec_.mutable_data()->set_skip_bad(true);
  EXPECT_THAT(Open()->warnings(),
              ::testing::ElementsAre(
                  absl::StrCat("data.files: ", path, ": skipped 1 bytes that are not UTF-8")));
}

TEST_F(DatasetTest, ATokenizerLearnsNothingFromHeldOutText) {
  Add("a.txt", Lines(90) + "zyxwvut zyxwvut zyxwvut");
  const auto with = Open();
  spec_.mutable_data()->set_files(0, Write("b.txt", Lines(90) + "abcdefg abcdefg abcdefg"));
  EXPECT_EQ(Open()->tokenizer()->files[0].content, with->tokenizer()->files[0].content);
}

TEST_F(DatasetTest, ATokenizerLearnsFromTheTrainingPartOfPackedText) {
  spec_.mutable_data()->add_files(WriteGzip("book.txt.gz", Lines(300) + Repeated("zyxwvut ", 100)));
  const auto dataset = Open();
  ASSERT_NE(dataset, nullptr);
  EXPECT_THAT(dataset->tokenizer()->files[0].content, HasSubstr("Line"));
  EXPECT_THAT(dataset->tokenizer()->files[0].content, ::testing::Not(HasSubstr("zy")));
}

TEST_F(DatasetTest, ATokenizerLearnsFromTheTrainingPartOfJsonLinesByTheirBytes) {
  spec_.mutable_data()->set_json_field("text");
  const auto document = [](const std::string& text) {
    return absl::StrCat("{\"text\": \"", text, "\"}\n");
  };
  const std::string good = Repeated("Love is not love ", 60);
  const std::string bad = document(Repeated("zyxwvut ", 4));
  Add("a.jsonl", document(good) + bad + bad + bad);
  const auto several = Open();
  ASSERT_NE(several, nullptr);
  EXPECT_THAT(several->tokenizer()->files[0].content, HasSubstr("Love"));
  EXPECT_THAT(several->tokenizer()->files[0].content, ::testing::Not(HasSubstr("zy")));
  spec_.mutable_data()->set_files(0, Write("b.jsonl", document(good + Repeated("zyxwvut ", 12))));
  const auto one = Open();
  ASSERT_NE(one, nullptr);
  EXPECT_THAT(one->tokenizer()->files[0].content, HasSubstr("Love"));
  EXPECT_THAT(one->tokenizer()->files[0].content, ::testing::Not(HasSubstr("zy")));
}

TEST_F(DatasetTest, WhatCannotBeTrainedOnIsRefusedWithTheReason) {
  const std::string path = Add("a.txt", Lines(50));
  spec_.mutable_model()->set_vocab_size(260);
  EXPECT_THAT(Refusal(), HasSubstr("more than model.vocab_size = 260"));
  spec_.mutable_model()->set_vocab_size(300);
  spec_.mutable_train()->set_seq_length(5000);
  EXPECT_THAT(Refusal(), HasSubstr("expected at least train.seq_length + 1 = 5001"));
  spec_.mutable_train()->set_seq_length(16);
  UseLearntTokenizer();
  const std::string other = folder_ + "/other.tokens";
  const auto writer = TokenFileWriter::Create({other, 300, std::string(64, 'a')});
  ASSERT_TRUE((*writer)->Append(std::vector<int32_t>(100, 1)).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  spec_.mutable_data()->set_files(0, other);
  EXPECT_THAT(Refusal(), HasSubstr("was encoded by the tokenizer with SHA-256 aaaaaaaaaaaa..."));
  spec_.mutable_data()->set_tokenizer("bytes");
  EXPECT_THAT(Refusal(), HasSubstr("is a token file; name its tokenizer in data.tokenizer"));
}

TEST_F(DatasetTest, ToEvaluateOnlyTheHeldOutPartIsEncodedOrAllOfIt) {
  Add("a.txt", Lines(100));
  UseLearntTokenizer();
  const std::string all = Lines(100) + "<|endoftext|>";
  const auto held_out = Open({.held_out_only = true});
  EXPECT_EQ(Text(*held_out, held_out->held_out()),
            all.substr(Lines(100).size() - Lines(100).size() / 4));
  const auto whole = Open({.held_out_only = true, .whole = true});
  EXPECT_EQ(Text(*whole, whole->held_out()), all);
}

// Characters, with tokens that stand around a text, and one that the model lacks.
constexpr char kAround[] = R"({
  "added_tokens": [{"id": 3, "content": "<s>", "special": true},
    {"id": 4, "content": "</s>", "special": true}, {"id": 5, "content": "[PAD]", "special": true}],
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"ids": [3]}}},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2}, "merges": []}})";

TEST_F(DatasetTest, ADocumentThatBeginsAndEndsAsTheTokenizerWantsGetsNothingTwice) {
  spec_.mutable_data()->clear_tokenizer_vocab_size();
  spec_.mutable_data()->set_tokenizer(Write("around.json", kAround));
  spec_.mutable_data()->set_json_field("text");
  const std::string path = Add("a.jsonl", Repeated("{\"text\": \"<s>ab</s>\"}\n{\"text\": \"ab\"}\n"
                                                   "{\"text\": \"a<s>b\"}\n{\"text\": \"\"}\n",
                                                   20));
  for (int i = 0; i < 2; ++i) {  // encoded, and found in the cache
    const auto dataset = Open();
    std::vector<int32_t> all = Ids(*dataset->train_texts()[0]);
    const std::vector<int32_t> held_out = Ids(dataset->held_out());
    all.insert(all.end(), held_out.begin(), held_out.end());
    ASSERT_EQ(all.size(), 20u * 15);
    const std::vector<int32_t> expected = {3, 0, 1, 4, 3, 0, 1, 4, 3, 0, 3, 1, 4, 3, 4};
    for (size_t k = 0; k < all.size(); ++k) EXPECT_EQ(all[k], expected[k % 15]) << k;
    EXPECT_THAT(dataset->warnings(), ::testing::ElementsAre(absl::StrCat(
                                         "data.files: ", path,
                                         ": 20 documents begin or end with '<s>' already, "
                                         "which is not put there again")));
  }
}

TEST_F(DatasetTest, AddedTokensThatTheModelLacksAreRefusedWhereTheyOccur) {
  spec_.mutable_data()->clear_tokenizer_vocab_size();
  spec_.mutable_data()->set_tokenizer(Write("around.json", kAround));
  spec_.mutable_data()->set_json_field("text");
  spec_.mutable_model()->set_vocab_size(5);
  EXPECT_TRUE(FillVocabulary(&spec_).ok());
  const std::string path = Add("a.jsonl", Repeated("{\"text\": \"abab\"}\n", 40));
  ASSERT_NE(Open(), nullptr);
  Write("a.jsonl", Repeated("{\"text\": \"ab\"}\n{\"text\": \"a[PAD]\"}\n", 40));
  EXPECT_EQ(Refusal(), absl::StrCat("data.files: ", path,
                                    ": document 2 has the token '[PAD]' (id 5), which a model of 5 "
                                    "tokens does not have; leave it out of the text"));
  spec_.mutable_model()->set_vocab_size(6);
  ASSERT_NE(Open(), nullptr) << "a model that has it";
  spec_.mutable_model()->set_vocab_size(5);
  EXPECT_THAT(Refusal(), HasSubstr("'[PAD]' (id 5)")) << "although tokens for 6 are kept";
  spec_.mutable_model()->set_vocab_size(4);
  EXPECT_THAT(std::string(FillVocabulary(&spec_).message()),
              HasSubstr("has 6 tokens; expected at least 5"))
      << "every document ends with </s>";
}

TEST_F(DatasetTest, WeightsMixEntriesAndEachHoldsOutItsOwnPart) {
  Add("a.txt", std::string(3000, 'a'));
  Add("b.txt", std::string(6000, 'b'));
  spec_.mutable_data()->set_tokenizer("bytes");
  spec_.mutable_data()->clear_tokenizer_vocab_size();
  const auto joined = Open();
  spec_.mutable_data()->add_weights("1");
  spec_.mutable_data()->add_weights("3");
  const auto mixed = Open();
  EXPECT_EQ(mixed->held_out().num_tokens(), 750 + 1500);
  EXPECT_NE(mixed->Fingerprint()->tokens_sha256(), joined->Fingerprint()->tokens_sha256());
  int from_a = 0;
  std::vector<int32_t> sample(17);
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(mixed->samples().Read(i, absl::MakeSpan(sample)).ok());
    EXPECT_EQ(std::set<int32_t>(sample.begin(), sample.end()).size(), 1u);
    from_a += sample[0] == 'a' ? 1 : 0;
  }
  EXPECT_EQ(from_a, 100);
}

TEST_F(DatasetTest, AFingerprintSaysWhichFileBelongsToWhichEntry) {
  for (const char* name : {"a", "b", "c"}) Write(name, Lines(200) + name);
  std::filesystem::create_directories(folder_ + "/ab");
  std::filesystem::create_directories(folder_ + "/bc");
  for (const char* copy : {"ab/a", "ab/b", "bc/b", "bc/c"}) {
    Write(copy, Lines(200) + (copy + 3));
  }
  spec_.mutable_data()->add_weights("1");
  spec_.mutable_data()->add_weights("1");
  const auto fingerprint = [&](const std::string& first, const std::string& second) {
    spec_.mutable_data()->clear_files();
    spec_.mutable_data()->add_files(absl::StrCat(folder_, "/", first));
    spec_.mutable_data()->add_files(absl::StrCat(folder_, "/", second));
    return Open()->Fingerprint().value();
  };
  for (const bool bytes : {false, true}) {
    if (bytes) spec_.mutable_data()->clear_tokenizer_vocab_size();
    const auto one = fingerprint("ab", "c"), other = fingerprint("a", "bc");
    EXPECT_THAT(one.file_sha256(), ::testing::ElementsAreArray(other.file_sha256()));
    EXPECT_NE(one.tokens_sha256(), other.tokens_sha256());
  }
}

// Returns the chunks of a file.
std::vector<std::string> ChunksOf(const std::string& path, int64_t chunk_bytes) {
  TextChunkOptions options;
  options.path = path;
  options.chunk_bytes = chunk_bytes;
  const auto chunks = TextChunks::Open(options).value();
  std::vector<std::string> texts;
  TextChunk chunk;
  while (chunks->Next(&chunk).value()) texts.push_back(chunk.text);
  return texts;
}

TEST_F(DatasetTest, TextWithoutAGoodPlaceToCutIsCutBetweenTwoCharacters) {
  for (const std::string word : {"\u0434\u0430 ", "\u4e2d\n", "1,2\n", "\U0001f600"}) {
    const std::string text = Repeated(word, 30000);
    std::string joined;
    for (const std::string& chunk : ChunksOf(Write("a.txt", text), 1001)) {
      EXPECT_LE(chunk.size(), 2 * 1001 + 4u);
      EXPECT_NE(static_cast<unsigned char>(chunk[0]) & 0xC0, 0x80) << "begins in a character";
      joined += chunk;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST_F(DatasetTest, AGoodPlaceToCutIsFoundWhereTwoBlocksOfTheFileMeet) {
  const int block = 1 << 20;
  for (const int size : {block - 1, block, block + 1}) {
    const std::string first = std::string(static_cast<size_t>(size) - 1, '1') + "\n";
    const std::string text = first + "Line";
    EXPECT_THAT(ChunksOf(Write("a.txt", text), block - 10), ::testing::ElementsAre(first, "Line"));
  }
}

TEST_F(DatasetTest, TheWorkOfCuttingGrowsAsTheText) {
  constexpr int kSize = 4 << 20;
  constexpr int kChunk = 1 << 20;
  for (const std::string unit : {"\n", "x", "1\n", "a\nb", "\u4e2d", " \n1"}) {
    const auto work = [&](int size) {
      const std::string path = Write("a.txt", Repeated(unit, size / static_cast<int>(unit.size())));
      return base::WorkOf([&] { ChunksOf(path, kChunk); });
    };
    const int64_t before = work(kSize);
    EXPECT_GE(before, kSize);
    EXPECT_LE(work(2 * kSize), before * 5 / 2) << unit;
  }
}

class TokenCacheTest : public DatasetTest {
 protected:
  TokenCacheTest() {
    Add("a.txt", Lines(200));
    tokenizer_ = Open();
    request_.text.path = Write("long.txt", Lines(2000));
    request_.text.chunk_bytes = 2000;
    request_.text_sha256 = base::Sha256OfFile(request_.text.path).value();
    request_.tokenizer = tokenizer_->tokenizer()->tokenizer.get();
    request_.piece_bytes = 8000;
  }
  EncodedText Encode() { return TokenCache(folder_ + "/tokens").Encode(request_, {}).value(); }
  static std::vector<int32_t> IdsOf(const EncodedText& encoded) {
    std::vector<int32_t> all;
    for (const auto& piece : encoded.pieces) {
      std::vector<int32_t> ids(static_cast<size_t>(piece->num_tokens()));
      EXPECT_TRUE(piece->Read(0, absl::MakeSpan(ids)).ok());
      all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
  }
  std::string PathOf(const EncodedText& encoded, const std::string& name) const {
    return absl::StrCat(folder_, "/tokens/", encoded.sha256, "/", name);
  }

  std::unique_ptr<Dataset> tokenizer_;
  EncodeRequest request_;
};

TEST_F(TokenCacheTest, ChunksAndPiecesDoNotChangeTheTokens) {
  const EncodedText encoded = Encode();
  EXPECT_GT(encoded.pieces.size(), 3u);
  std::vector<int32_t> whole;
  request_.tokenizer->Encode(Lines(2000), {}, &whole);
  whole.push_back(request_.end_token);
  EXPECT_EQ(IdsOf(encoded), whole);
}

TEST_F(TokenCacheTest, AProcessThatWasKilledLosesOnePieceAndADamagedOneIsEncodedAgain) {
  const std::vector<int32_t> calm = IdsOf(Encode());
  const EncodedText first = Encode();
  const auto time = [&](const std::string& name) {
    return std::filesystem::last_write_time(PathOf(first, name));
  };
  // What a process leaves that dies in its third piece.
  std::filesystem::remove(PathOf(first, "complete"));
  for (size_t i = 2; i < first.pieces.size(); ++i) {
    std::filesystem::remove(PathOf(first, absl::StrCat("0000", i, ".tokens")));
  }
  const auto before = time("00000.tokens");
  EXPECT_EQ(IdsOf(Encode()), calm);
  EXPECT_EQ(time("00000.tokens"), before) << "a whole piece is not written again";
  std::filesystem::resize_file(PathOf(first, "00001.tokens"), 200);
  EXPECT_EQ(IdsOf(Encode()), calm);
}

TEST_F(TokenCacheTest, ATextThatChangesWhileItIsEncodedIsNotKept) {
  bool changed = false;
  const OnProgress change = [&](const std::string&, int64_t, int64_t) {
    if (!std::exchange(changed, true)) Write("long.txt", Lines(2001));
  };
  TokenCache cache(folder_ + "/tokens");
  const auto refused = cache.Encode(request_, change);
  EXPECT_EQ(refused.status(), absl::DataLossError(absl::StrCat(request_.text.path,
                                                               ": changed while it was encoded")));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.folder())) {
    EXPECT_NE(entry.path().extension(), ".tokens") << entry.path();
  }
}

TEST_F(TokenCacheTest, ProgressNamesTheFileAndCountsItsBytes) {
  std::vector<std::string> seen;
  int64_t last = 0;
  const OnProgress on_progress = [&](const std::string& what, int64_t done, int64_t all) {
    seen.push_back(what);
    EXPECT_GE(done, last);
    EXPECT_LE(done, all);
    last = done;
  };
  ASSERT_TRUE(TokenCache(folder_ + "/tokens").Encode(request_, on_progress).ok());
  EXPECT_GT(seen.size(), 10u);
  EXPECT_EQ(seen.front(), "tokenizing " + request_.text.path);
  seen.clear();
  last = 0;
  ASSERT_TRUE(TokenCache(folder_ + "/tokens").Encode(request_, on_progress).ok());
  EXPECT_TRUE(seen.empty()) << "nothing is encoded twice";
}

}  // namespace
}  // namespace megascale::data
