// Documents of plain and packed files, and what is said about bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/plain_text.h"

namespace megascale::data {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  std::string packed(text.size() + 1000, '\0');
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/", info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(base::WriteFileDurably(path, content).ok());
    return path;
  }

  // Returns all documents; the error as the last one.
  static std::vector<std::string> All(const std::string& path, const DocumentOptions& options) {
    std::vector<std::string> found;
    auto documents = Documents::Open(path, options);
    if (!documents.ok()) return {std::string(documents.status().message())};
    std::string document;
    for (;;) {
      const auto more = (*documents)->Next(&document);
      if (!more.ok()) found.emplace_back(more.status().message());
      if (!more.ok() || !*more) return found;
      found.push_back(document);
    }
  }

  std::string folder_;
};

TEST_F(SourceTest, APlainFileIsOneDocument) {
  EXPECT_THAT(All(Write("a", "two\nlines\n"), {}), ElementsAre("two\nlines\n"));
  EXPECT_THAT(All(Write("b", ""), {}), ElementsAre(""));
}

TEST_F(SourceTest, PackedFilesAreUnpackedWhateverTheirName) {
  std::string text;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, i, " ");
  EXPECT_THAT(All(Write("a.txt", Gzip(text)), {}), ElementsAre(text));
  EXPECT_THAT(All(Write("b.txt", Zstd(text)), {}), ElementsAre(text));
  EXPECT_THAT(All(Write("two", Gzip("one ") + Gzip("two")), {}), ElementsAre("one two"));
  EXPECT_THAT(All(Write("three", Zstd("one ") + Zstd("two")), {}), ElementsAre("one two"));
}

TEST_F(SourceTest, ACutOrDamagedPackedFileIsAnError) {
  for (const std::string& packed : {Gzip("some text"), Zstd("some text")}) {
    const std::string cut = Write("cut", packed.substr(0, packed.size() - 3));
    EXPECT_THAT(All(cut, {}).back(), HasSubstr("ends too early"));
    std::string bad = packed;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 0x55);
    bad[5] = static_cast<char>(bad[5] ^ 0x7F);
    EXPECT_THAT(All(Write("bad", bad), {}).back(), HasSubstr(folder_));
  }
}

TEST_F(SourceTest, EachLineOfJsonLinesIsADocument) {
  const std::string path = Write(
      "a", "\xEF\xBB\xBF{\"text\": \"\\u00e9\\n\"}\r\n\n{\"b\": {\"text\": 1}, \"text\": \"x\"}");
  EXPECT_THAT(All(path, {.json_field = "text", .skip_bad = false}), ElementsAre("é\n", "x"));
}

TEST_F(SourceTest, ABadLineIsNamedByFileAndLine) {
  const struct {
    std::string line, message;
  } mistakes[] = {
      {"{\"text\": 7}", ":2: the field 'text' is not a string; expected text"},
      {"{\"other\": \"a\"}", ":2: has no field 'text'; expected one with the text"},
      {"[1]", ":2: is no JSON object; expected one with a field 'text'"},
      {"{\"text\": \"\xFF\"}", ":2: is not JSON: mistake at byte 11"},
      {"{\"text\": \"a\"", ":2: is not JSON: mistake at byte 13"},
      {std::string(1000, '['), ":2: is not JSON: mistake at byte 1"},
  };
  for (const auto& mistake : mistakes) {
    const std::string path =
        Write("a", "{\"text\": \"a\"}\n" + mistake.line + "\n{\"text\": \"b\"}");
    const auto found = All(path, {.json_field = "text", .skip_bad = false});
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[1], path + mistake.message);
    EXPECT_THAT(All(path, {.json_field = "text", .skip_bad = true}), ElementsAre("a", "b"));
  }
}

TEST_F(SourceTest, PlainTextThatIsNotUtf8IsRefusedOrCounted) {
  const std::string path = Write("a", "\xFFtext");
  EXPECT_THAT(All(path, {}).back(), EndsWith("is not UTF-8; convert it, or leave it out with "
                                             "--skip-bad"));
  auto documents = Documents::Open(path, {.json_field = "", .skip_bad = true});
  std::string document;
  EXPECT_FALSE(*(*documents)->Next(&document));
  EXPECT_EQ((*documents)->num_skipped(), 1);
}

TEST_F(SourceTest, ADocumentThatIsTooLongIsRefused) {
  DocumentOptions options;
  options.document_bytes_max = 10;
  EXPECT_THAT(All(Write("a", "01234567890"), options).back(), HasSubstr("more than 10 bytes"));
  options.json_field = "text";
  EXPECT_THAT(All(Write("b", "{\"text\": \"a\"}"), options).back(), HasSubstr(":1: a document"));
}

TEST_F(SourceTest, AFolderStandsForItsFilesByName) {
  const std::string b = Write("b", "b"), a = Write("a", "a");
  Write(".hidden", "h");
  EXPECT_THAT(*FilesOf(folder_), ElementsAre(a, b));
  EXPECT_THAT(*FilesOf(a), ElementsAre(a));
  EXPECT_THAT(All(folder_, {}).back(), HasSubstr("is no regular file"));
}

// Returns the pieces of a plain file in one, and how many bytes were skipped; or the error.
std::string PlainTextOf(const std::string& path, const PlainTextOptions& options) {
  const auto text = PlainText::Open(path, options);
  if (!text.ok()) return std::string(text.status().message());
  std::string all;
  std::string piece;
  for (;;) {
    const auto more = (*text)->Next(&piece);
    if (!more.ok()) return std::string(more.status().message());
    if (!*more) return absl::StrCat(all, "|", (*text)->num_skipped());
    EXPECT_TRUE(base::IsUtf8(piece));
    all += piece;
  }
}

TEST_F(SourceTest, PlainTextComesInWholeCharactersWhateverTheBlocks) {
  const std::string path = Write("good", "aé日\xF0\x9F\x98\x80z");
  const std::string bad = Write("bad", "aé\xFF日b\xF0\x9F\x98");
  for (size_t block = 1; block <= 16; ++block) {
    EXPECT_EQ(PlainTextOf(path, {.block_bytes = block}), "aé日\xF0\x9F\x98\x80z|0");
    EXPECT_EQ(PlainTextOf(bad, {.skip_bad = true, .block_bytes = block}), "aé日b|4");
    EXPECT_THAT(PlainTextOf(bad, {.block_bytes = block}),
                HasSubstr("/bad:1: is not UTF-8 at byte 3 of the file; convert it"));
  }
  EXPECT_EQ(PlainTextOf(Write("packed", Gzip("aé")), {}), "aé|0");
  EXPECT_EQ(PlainTextOf(Write("none", ""), {}), "|0");
  EXPECT_THAT(PlainTextOf(Write("cut", "a\xC3"), {}), HasSubstr("not UTF-8 at byte 1"));
  const std::string lines = Write("lines", "a\n\né\nb\xFF\n");
  for (size_t block = 1; block <= 8; ++block) {
    EXPECT_THAT(PlainTextOf(lines, {.block_bytes = block}),
                HasSubstr("/lines:4: is not UTF-8 at byte 7 of the file"));
  }
}

}  // namespace
}  // namespace megascale::data
